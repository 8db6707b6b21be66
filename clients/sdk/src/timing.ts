/**
 * @internal Resolves after the time, or rejects with the signal's reason as soon as it is aborted.
 */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted === true) return reject(reasonOf(signal));
    const aborted = (): void => {
      clearTimeout(timer);
      reject(reasonOf(signal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', aborted);
      resolve();
    }, ms);
    signal?.addEventListener('abort', aborted, { once: true });
  });
}

/** @internal What an aborted call rejects with. */
export const reasonOf = (signal: AbortSignal | undefined): Error =>
  signal?.reason instanceof Error ? signal.reason : new Error(String(signal?.reason));

/**
 * @internal The wait before attempt `n` (from 0) is repeated: it doubles, and a random half of it
 * keeps clients that failed together apart.
 */
export function backoffMs(n: number, firstMs: number, maxMs: number): number {
  const wholeMs = Math.min(maxMs, firstMs * 2 ** n);
  return wholeMs / 2 + (Math.random() * wholeMs) / 2;
}

/**
 * @internal One signal that is aborted with the first of others, until it is released. Not by
 * `AbortSignal.any`, whose signals are held by nobody while they are waited for.
 */
export class LinkedSignal {
  readonly #abort = new AbortController();
  readonly #release: (() => void)[] = [];

  constructor(...signals: readonly (AbortSignal | undefined)[]) {
    for (const signal of signals) {
      if (signal === undefined) continue;
      const aborted = (): void => this.#abort.abort(signal.reason);
      if (signal.aborted) aborted();
      signal.addEventListener('abort', aborted);
      this.#release.push(() => signal.removeEventListener('abort', aborted));
    }
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  abort(reason: Error): void {
    this.#abort.abort(reason);
  }

  /** From now on the others have no effect on it, and do not hold it. */
  release(): void {
    for (const release of this.#release.splice(0)) release();
  }
}

/** The longest timer of all runtimes: 24 days. */
const TIMER_MS_MAX = 2 ** 31 - 1;

/**
 * @internal Aborts its signal after a time, unless it is cleared before; never, if that is
 *   infinite.
 */
export class Deadline {
  readonly #abort = new AbortController();
  readonly #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(ms: number) {
    if (ms === Infinity) return;
    this.#timer = setTimeout(() => this.#abort.abort(), Math.min(ms, TIMER_MS_MAX));
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  get isOver(): boolean {
    return this.#abort.signal.aborted;
  }

  clear(): void {
    clearTimeout(this.#timer);
  }
}
