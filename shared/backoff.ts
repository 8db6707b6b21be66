import { setTimeout as sleep } from 'node:timers/promises';

/** The shortest and the longest pause between two attempts, in milliseconds. */
export interface BackoffRange {
  readonly min: number;
  readonly max: number;
}

/**
 * The pause after a number of failed attempts: `min` after none, doubled by each, at most `max`.
 * @returns milliseconds
 */
export const backoffMs = (failures: number, { min, max }: BackoffRange): number =>
  Math.min(min * 2 ** failures, max);

/** Exponential backoff of a loop: each pause is twice as long as the one before, within a range. */
export class Backoff {
  readonly #range: BackoffRange;
  #pauses = 0;

  constructor(range: BackoffRange) {
    this.#range = range;
  }

  /** Lets the next pause be the shortest again. */
  reset(): void {
    this.#pauses = 0;
  }

  /** @returns the length of the next pause in milliseconds; the one after it is longer */
  nextMs(): number {
    const ms = backoffMs(this.#pauses, this.#range);
    this.#pauses += 1;
    return ms;
  }

  /**
   * Waits for the next pause. Never throws: an aborted signal ends it at once.
   * @param options.ref false: the pause does not keep the process alive
   */
  async pause(options: { signal?: AbortSignal; ref?: boolean } = {}): Promise<void> {
    await sleep(this.nextMs(), undefined, options).catch(() => undefined);
  }
}
