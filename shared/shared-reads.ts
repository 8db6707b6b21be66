/**
 * Coalesces equal reads. Each caller gets the result of a read that began after it asked, so nobody
 * sees older data than with a read of its own; callers that ask during a read share the next one.
 */
export class SharedReads<T> {
  readonly #running = new Map<string, Promise<T>>();
  readonly #next = new Map<string, Promise<T>>();

  /** @param name identifies what is read; reads with equal names are shared */
  read(name: string, load: () => Promise<T>): Promise<T> {
    const running = this.#running.get(name);
    if (running === undefined) return this.#begin(name, load);
    const next = this.#next.get(name);
    if (next !== undefined) return next;
    const begin = (): Promise<T> => {
      this.#next.delete(name);
      return this.#begin(name, load);
    };
    const after = running.then(begin, begin);
    this.#next.set(name, after);
    return after;
  }

  #begin(name: string, load: () => Promise<T>): Promise<T> {
    const read = load().finally(() => {
      if (!this.#next.has(name)) this.#running.delete(name);
    });
    this.#running.set(name, read);
    return read;
  }
}
