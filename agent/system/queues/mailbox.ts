import { AppError } from '../../../shared/errors.ts';
import { SYSTEM_LIMITS } from '../limits.ts';
import { SerialQueue } from './serial-queue.ts';

/**
 * An actor's mailbox: messages are handled one at a time, in the order they were sent, so the
 * actor's state needs no other lock. Its length is bounded; a full mailbox refuses further
 * messages.
 */
export class Mailbox {
  readonly #queue = new SerialQueue();

  /** Settles when every message that was sent so far has been handled; never rejects. */
  get idle(): Promise<unknown> {
    return this.#queue.idle;
  }

  /**
   * Sends a message: `handle` runs once all earlier messages have been handled.
   * @throws AppError `no_capacity` when too many messages wait; else whatever `handle` throws
   */
  async send<T>(handle: () => Promise<T>): Promise<T> {
    if (this.#queue.length >= SYSTEM_LIMITS.mailboxLengthMax) {
      throw new AppError('no_capacity', 'too much work is waiting for this disk or sandbox');
    }
    return this.#queue.add(handle);
  }
}
