/** Work that several callers wait for. It is given up once none of them waits any more. */
export class SharedWork<P> {
  /** Settles with the work. */
  readonly ended: Promise<void>;
  readonly #abort = new AbortController();
  readonly #listeners = new Set<(progress: P) => void>();
  #waiting = 0;
  #last: P | undefined;

  constructor(work: (signal: AbortSignal, report: (progress: P) => void) => Promise<void>) {
    this.ended = work(this.#abort.signal, (progress) => this.#report(progress));
    this.ended.catch(() => undefined);
  }

  /** Whether all who waited have left. */
  get isAbandoned(): boolean {
    return this.#abort.signal.aborted;
  }

  /**
   * Waits for the end.
   * @param onProgress told how far the work is, at once if it has begun
   * @throws what the work throws, or the signal's reason
   */
  async join(
    signal: AbortSignal,
    onProgress: (progress: P) => void = () => undefined,
  ): Promise<void> {
    const left = Promise.withResolvers<never>();
    left.promise.catch(() => undefined);
    const leave = (): void => left.reject(signal.reason as Error);
    this.#waiting += 1;
    this.#listeners.add(onProgress);
    signal.addEventListener('abort', leave, { once: true });
    if (this.#last !== undefined) onProgress(this.#last);
    try {
      signal.throwIfAborted(); // Work that nobody ever waited for is given up, too.
      await Promise.race([this.ended, left.promise]);
    } finally {
      signal.removeEventListener('abort', leave);
      this.#listeners.delete(onProgress);
      this.#waiting -= 1;
      if (this.#waiting === 0) {
        this.#abort.abort(signal.reason ?? new Error('nobody waits any more'));
      }
    }
  }

  #report(progress: P): void {
    this.#last = progress;
    for (const listener of this.#listeners) listener(progress);
  }
}
