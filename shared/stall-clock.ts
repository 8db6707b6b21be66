import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { awaitsContinue } from './continue-requests.ts';

export interface TransferLimits {
  /** What a peer must move on average, up or down, while we wait for it. */
  readonly bytesPerSecondMin: number;
  /** How long a peer may move nothing. */
  readonly stalledMs: number;
  /** The same while others wait for its place. */
  readonly crowdedStalledMs: number;
}

/**
 * Measures whether the peer of a connection keeps its transfer moving. The peer has `stalledMs` of
 * patience; waiting for it uses that up, and every byte that it takes or sends gives some back. Time
 * in which we, not the peer, hold things up does not count.
 */
export class StallClock {
  readonly #socket: Socket;
  readonly #limits: TransferLimits;
  #patienceMs: number;
  #movedBytes: number;
  #lookedAt = performance.now();

  constructor(socket: Socket, limits: TransferLimits) {
    this.#socket = socket;
    this.#limits = limits;
    this.#patienceMs = limits.stalledMs;
    this.#movedBytes = movedBytes(socket);
  }

  /** To be asked now and again. @param requests under way on the connection */
  isStalled(requests: Iterable<IncomingMessage>, isCrowded: boolean): boolean {
    const { bytesPerSecondMin, stalledMs, crowdedStalledMs } = this.#limits;
    const now = performance.now();
    const moved = movedBytes(this.#socket);
    const gainedMs = ((moved - this.#movedBytes) / bytesPerSecondMin) * 1000;
    const patienceMsMax = isCrowded ? crowdedStalledMs : stalledMs;
    this.#patienceMs = Math.min(patienceMsMax, this.#patienceMs + gainedMs);
    if (this.#awaitsPeer(requests)) this.#patienceMs -= now - this.#lookedAt;
    this.#lookedAt = now;
    this.#movedBytes = moved;
    return this.#patienceMs <= 0;
  }

  #awaitsPeer(requests: Iterable<IncomingMessage>): boolean {
    if (this.#socket.writableLength > 0) return true; // The kernel takes no more for this peer.
    for (const request of requests) {
      // With bytes lying here it is for us to go on; before we say so the peer may not send any.
      const isPeersTurn = !request.complete && request.readableLength === 0;
      if (isPeersTurn && !awaitsContinue(request)) return true;
    }
    return false;
  }
}

/** Read from the peer, or taken off our hands for it. */
const movedBytes = ({ bytesRead, bytesWritten, writableLength }: Socket): number =>
  bytesRead + bytesWritten - writableLength;
