import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { onClockStep } from '../../system/clock-steps.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { toError } from '../../../shared/errors.ts';
import { FrameSplitter } from './frame-splitter.ts';
import { GuestProtocolError, GuestUnavailableError } from './guest-errors.ts';
import {
  decodeGuestFrame,
  encodeHostFrame,
  GUEST_LIMITS,
  type GuestFrame,
  type HostFrame,
} from './guest-protocol.ts';
import { type Answer, GuestRequests } from './guest-requests.ts';
import { MiB } from '../../../shared/units.ts';

export const GUEST_TIMEOUTS_MS = {
  request: 10_000,
  start: 30_000, // The working directory may lie on a disk that answers slowly.
  configure: 30_000, // The root disk may have its journal to replay.
  beyondFreeze: 5_000,
  beyondHook: 5_000,
} as const;

/**
 * How often a guest is asked for its clock, which also shows that it lives. An emulated guest that
 * stalls for 2.3 s may lose time, so that such a stall must not fit between two questions.
 */
const ASK_EVERY_MS = 2_000;
/** With more than this unsent, the guest counts as gone: it has stopped reading. */
const WAITING_BYTES_MAX = 16 * MiB;

type Unnumbered<T> = T extends unknown ? Omit<T, 'request'> : never;
/** A frame without its request number. */
export type Question = Unnumbered<HostFrame>;

interface Callbacks {
  /** A frame that answers no request. @throws GuestProtocolError when it may not come now */
  readonly news: (frame: GuestFrame) => void;
  /** Called once; with an error unless `close` was called. */
  readonly closed: (error: Error | undefined) => void;
}

/** Options of a request. */
interface Expectation<T extends GuestFrame['type']> {
  readonly timeoutMs?: number;
  /** Called with the answer before any later frame is handled. */
  readonly apply?: (answer: Answer<T>) => void;
  /** Called for a refusal before any later frame is handled. */
  readonly refused?: () => void;
}

/**
 * Sends and receives frames on the stream to one guest, keeps their order, and matches answers with
 * requests. The first frame that a sound guest agent cannot have sent ends it.
 */
export class GuestConnection {
  readonly #stream: Duplex;
  readonly #callbacks: Callbacks;
  readonly #splitter = new FrameSplitter();
  readonly #requests = new GuestRequests();
  readonly #closed = new AbortController();
  readonly #longFrames = new SerialQueue();
  #asker: NodeJS.Timeout | undefined;

  /** From here on the connection owns the stream. */
  constructor(stream: Duplex, callbacks: Callbacks) {
    this.#stream = stream;
    this.#callbacks = callbacks;
    stream.on('data', (chunk: Buffer) => this.receive(chunk));
    stream.on('error', (cause) => {
      this.end(new GuestUnavailableError(`the guest hung up: ${cause.message}`, { cause }));
    });
    stream.on('close', () => this.end(new GuestUnavailableError('the guest hung up')));
    stream.resume();
  }

  get isClosed(): boolean {
    return this.#closed.signal.aborted;
  }

  /**
   * Asks now, at an interval, and after each step of the host's clock; ends the connection when
   * the guest does not answer in time.
   */
  askRegularly(ask: () => Promise<void>): void {
    const askNow = (): void => {
      ask().catch((error: unknown) => this.end(toError(error)));
    };
    askNow();
    this.#asker = setInterval(askNow, ASK_EVERY_MS);
    this.#asker.unref();
    this.#closed.signal.addEventListener('abort', onClockStep(askNow), { once: true });
  }

  receive(chunk: Buffer): void {
    if (this.isClosed) return;
    try {
      for (const stuffed of this.#splitter.push(chunk)) {
        if (!this.isClosed) this.#handle(decodeGuestFrame(stuffed));
      }
    } catch (error) {
      this.end(new GuestProtocolError('the guest broke the protocol', { cause: error }));
    }
  }

  /** Asks for something that is answered by `done`. */
  async request(frame: Question): Promise<void> {
    await this.ask('done', frame);
  }

  /**
   * @param type of the answer
   * @throws GuestUnavailableError, GuestFailure when the guest refuses
   */
  ask<T extends GuestFrame['type']>(
    type: T,
    frame: Question,
    expected: Expectation<T> = {},
  ): Promise<Answer<T>> {
    this.#refuseIfClosed();
    const { timeoutMs = GUEST_TIMEOUTS_MS.request } = expected;
    const { apply = () => undefined, refused = () => undefined } = expected;
    const { request, answered } = this.#requests.expect(type, timeoutMs, apply, refused);
    this.send({ ...frame, request });
    return answered;
  }

  /** Sends bytes that belong to the request that follows. */
  stage(bytes: Buffer): void {
    for (let at = 0; at < bytes.length; at += GUEST_LIMITS.payloadMax) {
      const piece = bytes.subarray(at, at + GUEST_LIMITS.payloadMax);
      this.send({ type: 'stage', request: 0, bytes: piece });
    }
  }

  send(frame: HostFrame): void {
    this.#refuseIfClosed();
    this.#stream.write(encodeHostFrame(frame));
    if (this.#stream.writableLength > WAITING_BYTES_MAX) {
      this.end(new GuestUnavailableError('the guest does not read'));
    }
  }

  /** Sends long frames one at a time, each once everything before it has left for the guest. */
  inTurn<T>(send: () => T): Promise<T> {
    return this.#longFrames.add(async () => {
      await this.#drained();
      return send();
    });
  }

  /** @param error why, unless it was closed on purpose */
  end(error: Error | undefined): void {
    if (this.isClosed) return;
    this.#closed.abort();
    clearInterval(this.#asker);
    this.#stream.destroy();
    this.#requests.failAll(error ?? new GuestUnavailableError('the channel was closed'));
    this.#callbacks.closed(error);
  }

  #handle(frame: GuestFrame): void {
    switch (frame.type) {
      case 'output':
      case 'exited':
      case 'taken':
      case 'evicted':
      case 'poweringOff':
        return this.#callbacks.news(frame);
      case 'welcome':
        throw new GuestProtocolError('welcome out of turn');
      default:
        this.#requests.settle(frame);
    }
  }

  async #drained(): Promise<void> {
    const { signal } = this.#closed;
    while (!signal.aborted && this.#stream.writableNeedDrain) {
      await once(this.#stream, 'drain', { signal }).catch(() => undefined);
    }
    this.#refuseIfClosed();
  }

  #refuseIfClosed(): void {
    if (this.isClosed) throw new GuestUnavailableError('the channel is closed');
  }
}
