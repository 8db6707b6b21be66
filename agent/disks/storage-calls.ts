import { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';

const unavailable = (): AppError =>
  new AppError('unavailable', 'the storage of the disk does not answer; try again');

/**
 * Work on files of the storage: a few at once, each with a deadline. Node does such work on a few
 * threads that all of the process shares, and storage that hangs keeps the thread that asked it.
 */
export class StorageCalls {
  #running = 0;
  /** In the order in which they came; each takes over the place of one that ends. */
  readonly #waiters = new Set<() => void>();

  /**
   * @returns what the work comes to; past its time it goes on by itself
   * @param onLate told when it is given up, with its end
   * @throws AppError `unavailable`
   */
  async run<T>(work: () => Promise<T>, onLate: (ended: Promise<unknown>) => void): Promise<T> {
    const deadline = performance.now() + LIMITS.storageCallMsMax;
    await this.#turn(LIMITS.storageCallMsMax);
    const done = work().finally(() => this.#endTurn());
    return answerWithin(done, deadline - performance.now(), onLate);
  }

  async #turn(waitMs: number): Promise<void> {
    if (this.#running < LIMITS.storageCallsAtOnceMax) {
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

  /** Hands the place to the one who has waited longest. */
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
 * What the promise comes to, if it does in time.
 * @param onLate told when it did not, with its end
 * @throws AppError `unavailable`
 */
export async function answerWithin<T>(
  promise: Promise<T>,
  ms: number,
  onLate: (ended: Promise<unknown>) => void,
): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      onLate(promise);
      reject(unavailable());
    }, ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
