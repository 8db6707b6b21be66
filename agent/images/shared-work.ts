import type { Turn } from '../system/queues/fair-turns.ts';

/** Somebody who waits for shared work. */
export interface Waiting<P> {
  /** Leaves when it aborts. */
  readonly signal: AbortSignal;
  /** Waits for a turn to do the work in; the signal ends that wait. */
  readonly acquire: (signal: AbortSignal) => Promise<Turn>;
  /** Told how far the work is, at once if it has begun. */
  readonly onProgress?: ((progress: P) => void) | undefined;
}

type Work<P> = (signal: AbortSignal, report: (progress: P) => void) => Promise<void>;

/**
 * Work that several callers wait for. Each waits for a turn of its own, so that none stands behind
 * another's queue: the work begins with the first turn that comes, and the others are given up. It
 * is given up once nobody waits any more.
 */
export class SharedWork<P> {
  /** Settles with the work; rejected if it never began. */
  readonly ended: Promise<void>;
  readonly #end = Promise.withResolvers<void>();
  readonly #work: Work<P>;
  readonly #begun = new AbortController();
  readonly #abort = new AbortController();
  readonly #listeners = new Set<(progress: P) => void>();
  #waiting = 0;
  #last: P | undefined;

  constructor(work: Work<P>) {
    this.#work = work;
    this.ended = this.#end.promise;
    this.ended.catch(() => undefined);
  }

  /** Whether all who waited have left. */
  get isAbandoned(): boolean {
    return this.#abort.signal.aborted;
  }

  /**
   * Waits for the end.
   * @throws what the work throws, why there was no turn, or the signal's reason
   */
  async join({ signal, acquire, onProgress = () => undefined }: Waiting<P>): Promise<void> {
    const left = Promise.withResolvers<never>();
    left.promise.catch(() => undefined);
    const leave = (): void => left.reject(signal.reason as Error);
    // A function of its own: one caller may wait twice with the same.
    const listener = (progress: P): void => onProgress(progress);
    this.#waiting += 1;
    this.#listeners.add(listener);
    signal.addEventListener('abort', leave, { once: true });
    if (this.#last !== undefined) onProgress(this.#last);
    try {
      signal.throwIfAborted(); // Work that nobody ever waited for is given up, too.
      await Promise.race([this.#begin(signal, acquire), left.promise]);
      await Promise.race([this.ended, left.promise]);
    } finally {
      signal.removeEventListener('abort', leave);
      this.#listeners.delete(listener);
      this.#waiting -= 1;
      if (this.#waiting === 0) this.#abandon(signal.reason ?? new Error('nobody waits any more'));
    }
  }

  /** Resolves when the work has begun, with this turn or another one's. */
  async #begin(signal: AbortSignal, acquire: Waiting<P>['acquire']): Promise<void> {
    const begun = this.#begun.signal;
    if (begun.aborted) return;
    let turn: Turn;
    try {
      turn = await acquire(AbortSignal.any([signal, begun]));
    } catch (error) {
      if (begun.aborted) return;
      throw error;
    }
    // Another turn came at the same time, or its owner left.
    if (begun.aborted || signal.aborted) return turn.release();
    this.#begun.abort();
    this.#end.resolve(this.#run(turn));
  }

  async #run(turn: Turn): Promise<void> {
    try {
      await this.#work(this.#abort.signal, (progress) => this.#report(progress));
    } finally {
      turn.release();
    }
  }

  #abandon(reason: unknown): void {
    this.#abort.abort(reason);
    if (!this.#begun.signal.aborted) this.#end.reject(reason);
  }

  #report(progress: P): void {
    this.#last = progress;
    for (const listener of this.#listeners) listener(progress);
  }
}
