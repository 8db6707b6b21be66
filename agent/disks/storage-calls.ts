import { AppError } from '../../shared/errors.ts';
import { DISK_LIMITS } from './limits.ts';
import { settledWithin } from '../../shared/settled-within.ts';

const unavailable = (): AppError =>
  new AppError('unavailable', 'the storage of the disk does not answer; try again');

/**
 * Runs work on files of the storage, a few pieces at a time and each with a deadline. Node does
 * such work on a few threads that the whole process shares, and storage that hangs occupies its
 * thread.
 */
export class StorageCalls {
  #running = 0;
  /** In order of arrival; each takes over the turn of a piece that ends. */
  readonly #waiters = new Set<() => void>();

  /**
   * @param onLate called when the deadline passes, with a promise for the work's end: work that was
   *   given up still runs
   * @returns what the work returns
   * @throws AppError `unavailable`
   */
  async run<T>(work: () => Promise<T>, onLate: (ended: Promise<unknown>) => void): Promise<T> {
    const deadline = performance.now() + DISK_LIMITS.storageCallMsMax;
    await this.#turn(DISK_LIMITS.storageCallMsMax);
    const done = work().finally(() => this.#endTurn());
    return answerWithin(done, deadline - performance.now(), onLate);
  }

  async #turn(waitMs: number): Promise<void> {
    if (this.#running < DISK_LIMITS.storageCallsAtOnceMax) {
      this.#running += 1;
      return;
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    this.#waiters.add(resolve);
    const timer = setTimeout(() => {
      this.#waiters.delete(resolve);
      reject(unavailable());
    }, waitMs);
    await promise.finally(() => clearTimeout(timer));
  }

  /** Hands the turn to whoever has waited longest. */
  #endTurn(): void {
    const [next] = this.#waiters;
    if (next === undefined) {
      this.#running -= 1;
      return;
    }
    this.#waiters.delete(next);
    next();
  }
}

/**
 * Waits for a promise for a limited time.
 * @param onLate called when the time is up, with the promise, which goes on
 * @throws AppError `unavailable`
 */
export async function answerWithin<T>(
  promise: Promise<T>,
  ms: number,
  onLate: (ended: Promise<unknown>) => void,
): Promise<T> {
  if (await settledWithin(promise, ms)) return promise;
  onLate(promise);
  throw unavailable();
}
