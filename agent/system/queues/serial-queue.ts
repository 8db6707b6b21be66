/**
 * Runs tasks one at a time, in the order in which they were added. A task's failure rejects only
 * the promise that adding it returned.
 */
export class SerialQueue {
  #length = 0;
  #last: Promise<unknown> = Promise.resolve();

  /** How many tasks are running or waiting. */
  get length(): number {
    return this.#length;
  }

  /** Resolves when every task added so far has ended; never rejects. */
  get idle(): Promise<unknown> {
    return this.#last;
  }

  /** Runs the task after all earlier ones. @returns the task's result or failure */
  add<T>(task: () => T | Promise<T>): Promise<T> {
    this.#length += 1;
    const done = this.#last.then(task).finally(() => {
      this.#length -= 1;
    });
    this.#last = done.catch(() => undefined);
    return done;
  }
}
