/**
 * Reads of what many ask for at once. Each gets what was read after it had asked, so nobody sees
 * less than with a read of its own; those who ask while a read is under way share the next one.
 */
export class SharedReads<T> {
  readonly #running = new Map<string, Promise<T>>();
  readonly #next = new Map<string, Promise<T>>();

  /** @param name of what is read; equal names share */
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
