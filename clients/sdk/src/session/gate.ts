import { reasonOf } from '../timing.ts';

/** @internal Wakes everyone who waits after a change; each checks its own condition. */
export class Gate {
  #change = Promise.withResolvers<void>();

  /** Something changed. */
  open(): void {
    this.#change.resolve();
    this.#change = Promise.withResolvers();
  }

  /** Resolves when the condition holds; it is checked after every change. */
  async until(holds: () => boolean, signal?: AbortSignal): Promise<void> {
    if (signal === undefined) {
      while (!holds()) await this.#change.promise;
      return;
    }
    const wake = (): void => this.open();
    signal.addEventListener('abort', wake);
    try {
      while (!holds()) {
        if (signal.aborted) throw reasonOf(signal);
        await this.#change.promise;
      }
    } finally {
      signal.removeEventListener('abort', wake);
    }
  }
}
