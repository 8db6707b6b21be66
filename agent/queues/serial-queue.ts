/**
 * Does pieces of work one at a time, in the order in which they were added. A piece that fails tells
 * whoever added it and nobody else.
 */
export class SerialQueue {
  #length = 0;
  #last: Promise<unknown> = Promise.resolve();

  /** How many pieces are under way or waiting. */
  get length(): number {
    return this.#length;
  }

  /** Settles when everything that was added so far has been done; never rejects. */
  get idle(): Promise<unknown> {
    return this.#last;
  }

  /** @returns what the work returns or throws, once its turn has come */
  add<T>(work: () => T | Promise<T>): Promise<T> {
    this.#length += 1;
    const done = this.#last.then(work).finally(() => {
      this.#length -= 1;
    });
    this.#last = done.catch(() => undefined);
    return done;
  }
}
