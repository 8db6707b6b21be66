import { GUEST_LIMITS, type GuestFrame, type guestFrames } from './guest-protocol.ts';
import { toError } from '../../../shared/errors.ts';
import { GuestProtocolError, GuestUnavailableError, toGuestFailure } from './guest-errors.ts';

type GuestFrameType = keyof typeof guestFrames;
export type Answer<T extends GuestFrameType> = Extract<GuestFrame, { type: T }>;

interface Waiting {
  readonly type: GuestFrameType;
  settle(answer: GuestFrame): void;
  fail(error: Error): void;
  refused(): void;
  readonly timer: NodeJS.Timeout;
}

/** How many requests may wait: a start for each process of a guest, and 64 of other kinds. */
const REQUESTS_MAX = GUEST_LIMITS.processesMax + 64;

/** The requests that wait for an answer. */
export class GuestRequests {
  readonly #waiting = new Map<number, Waiting>();
  #last = 0;

  /**
   * Takes a number for a request whose answer has this type. `apply` or `refused` is called before
   * any later frame is handled, even when the answer is late; the promise settles after that.
   */
  expect<T extends GuestFrameType>(
    type: T,
    timeoutMs: number,
    apply: (answer: Answer<T>) => void,
    refused: () => void,
  ): { request: number; answered: Promise<Answer<T>> } {
    if (this.#waiting.size >= REQUESTS_MAX) throw new GuestUnavailableError('too many requests');
    this.#last = (this.#last % 0xffff_ffff) + 1;
    const request = this.#last;
    const answered = new Promise<Answer<T>>((resolve, reject) => {
      const timer = setTimeout(() => this.#giveUp(request), timeoutMs);
      this.#waiting.set(request, {
        type,
        timer,
        fail: reject,
        refused,
        settle: (answer) => {
          apply(answer as Answer<T>);
          resolve(answer as Answer<T>);
        },
      });
    });
    return { request, answered };
  }

  /** @throws GuestProtocolError for an answer to no request, or of another type */
  settle(frame: GuestFrame): void {
    const waiting = this.#waiting.get(frame.request);
    if (waiting === undefined) throw new GuestProtocolError('answer that nobody asked for');
    this.#waiting.delete(frame.request);
    clearTimeout(waiting.timer);
    try {
      if (frame.type === 'failed') {
        waiting.refused();
        waiting.fail(toGuestFailure(frame));
      } else if (frame.type === waiting.type) {
        waiting.settle(frame);
      } else {
        throw new GuestProtocolError(`answer ${frame.type} to another question`);
      }
    } catch (error) {
      waiting.fail(toError(error));
      throw error;
    }
  }

  failAll(error: Error): void {
    for (const waiting of this.#waiting.values()) {
      clearTimeout(waiting.timer);
      waiting.fail(error);
    }
    this.#waiting.clear();
  }

  /** The number stays taken, so that a late answer is not taken for a breach of the protocol. */
  #giveUp(request: number): void {
    const waiting = this.#waiting.get(request);
    if (waiting === undefined) return;
    waiting.fail(new GuestUnavailableError('the guest did not answer in time'));
  }
}
