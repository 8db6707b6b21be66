import { backoffMs, type BackoffRange } from '../../../shared/backoff.ts';

interface Failures {
  readonly count: number;
  /** When to try again, by `performance.now()`. */
  readonly dueAt: number;
}

/**
 * Attempts that have failed, by what they were at: each is repeated after growing pauses, so often.
 */
export class FailedAttempts {
  readonly #pauses: BackoffRange;
  readonly #attemptsMax: number;
  readonly #failed = new Map<string, Failures>();

  constructor(pauses: BackoffRange, attemptsMax: number) {
    this.#pauses = pauses;
    this.#attemptsMax = attemptsMax;
  }

  get size(): number {
    return this.#failed.size;
  }

  get ids(): string[] {
    return [...this.#failed.keys()];
  }

  /** Those to be repeated now. */
  get due(): string[] {
    const now = performance.now();
    return [...this.#failed].flatMap(([id, { dueAt }]) => (dueAt <= now ? [id] : []));
  }

  /** Whether it has failed and is not to be repeated yet. */
  isPausing(id: string): boolean {
    return (this.#failed.get(id)?.dueAt ?? 0) > performance.now();
  }

  /** Counts a failure. @returns false when it was the last attempt: it is forgotten then */
  add(id: string): boolean {
    const count = (this.#failed.get(id)?.count ?? 0) + 1;
    if (count >= this.#attemptsMax) {
      this.#failed.delete(id);
      return false;
    }
    const dueAt = performance.now() + backoffMs(count - 1, this.#pauses);
    this.#failed.set(id, { count, dueAt });
    return true;
  }

  forget(id: string): void {
    this.#failed.delete(id);
  }
}
