import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { awaitsContinue } from './continue-requests.ts';

export interface TransferLimits {
  /** The least average rate of a peer, in either direction, while we wait for it. */
  readonly bytesPerSecondMin: number;
  /** How long a peer may transfer nothing. */
  readonly stalledMs: number;
  /** The same while other transfers wait for its place. */
  readonly crowdedStalledMs: number;
}

/**
 * Measures whether a connection's peer keeps its transfer moving. The peer starts with a credit of
 * `stalledMs`. Time spent waiting for it uses the credit up, every byte that it reads or sends
 * gives some back, and time during which the delay is ours does not count.
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

  /** Call this regularly. @param requests those under way on the connection */
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
    if (this.#socket.writableLength > 0) return true; // The peer does not read: its buffers are full.
    for (const request of requests) {
      // With unread bytes here, or before we sent 100 Continue, it is our turn.
      const isPeersTurn = !request.complete && request.readableLength === 0;
      if (isPeersTurn && !awaitsContinue(request)) return true;
    }
    return false;
  }
}

/** Bytes read from the peer and bytes that the kernel accepted for it. */
const movedBytes = ({ bytesRead, bytesWritten, writableLength }: Socket): number =>
  bytesRead + bytesWritten - writableLength;
