import { runInBackground } from './background.ts';

export interface MinuteSumsOptions<S> {
  /** Names the writing in log events, as `runInBackground` does. */
  readonly task: string;
  /** How long things are added up, from the first one on. */
  readonly forMs: number;
  /** Gets the sums by name. Must not throw. */
  readonly write: (sums: ReadonlyMap<string, S>) => Promise<void>;
}

/**
 * Adds up things that happen too often to be written one by one. A crash loses what was added since
 * the last writing.
 */
export class MinuteSums<S> {
  readonly #options: MinuteSumsOptions<S>;
  #sums = new Map<string, S>();
  #timer: NodeJS.Timeout | undefined;

  constructor(options: MinuteSumsOptions<S>) {
    this.#options = options;
  }

  get size(): number {
    return this.#sums.size;
  }

  has(name: string): boolean {
    return this.#sums.has(name);
  }

  /** The sum of this name, made when there is none, for the caller to change. */
  of(name: string, make: () => S): S {
    const sum = this.#sums.get(name) ?? make();
    this.#sums.set(name, sum);
    const { task, forMs } = this.#options;
    this.#timer ??= setTimeout(() => runInBackground(task, () => this.flush()), forMs).unref();
    return sum;
  }

  /** Writes what was added so far. */
  async flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const sums = this.#sums;
    this.#sums = new Map();
    if (sums.size > 0) await this.#options.write(sums);
  }
}
