interface Remembered<T> {
  readonly value: Promise<T>;
  /** On the clock of `performance.now()`. */
  readonly until: number;
}

/**
 * Reads that are repeated only after a while. Failures, and `undefined` for what is not there, are
 * not remembered.
 */
export class RememberedReads<T> {
  readonly #forMs: number;
  readonly #max: number;
  readonly #known = new Map<string, Remembered<T>>();

  /**
   * @param options.forMs the age of a result at most, counted from the beginning of its read
   * @param options.max results that are remembered; beyond it all are forgotten
   */
  constructor({ forMs, max }: { readonly forMs: number; readonly max: number }) {
    this.#forMs = forMs;
    this.#max = max;
  }

  /** @param name identifies what is read */
  read(name: string, load: () => Promise<T>): Promise<T> {
    const now = performance.now();
    const known = this.#known.get(name);
    if (known !== undefined && now < known.until) return known.value;
    if (this.#known.size >= this.#max) this.#known.clear();
    const read = { value: load(), until: now + this.#forMs };
    this.#known.set(name, read);
    const drop = (): void => {
      if (this.#known.get(name) === read) this.#known.delete(name);
    };
    read.value.then((found) => found ?? drop(), drop);
    return read.value;
  }

  /** The next read is made anew; also when one is under way. */
  forget(name: string): void {
    this.#known.delete(name);
  }
}
