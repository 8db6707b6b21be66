import { toError } from '../../../shared/errors.ts';

/**
 * Makes one file durable for all who write to it. Those who ask while it is being synced share the
 * next time.
 */
export class GroupSync {
  readonly #sync: () => Promise<void>;
  readonly #failed: (error: Error) => void;
  #present: Promise<void> = Promise.resolve();
  #next: Promise<void> | undefined;
  #failure: Error | undefined;

  /**
   * @param sync makes durable what was written before its call
   * @param failed told once, when a sync has failed
   */
  constructor(sync: () => Promise<void>, failed: (error: Error) => void) {
    this.#sync = sync;
    this.#failed = failed;
  }

  /**
   * Resolves when everything that was written before the call is durable.
   * @throws what `sync` threw, and ever after: a second attempt may succeed without the data of the
   *   first
   */
  durable(): Promise<void> {
    return (this.#next ??= this.#after(this.#present));
  }

  /**
   * @throws the same once a sync has failed: the caller need not write what can never be durable
   */
  refuseIfFailed(): void {
    if (this.#failure !== undefined) throw this.#failure;
  }

  async #after(present: Promise<void>): Promise<void> {
    await present;
    this.#present = this.#next ?? present;
    this.#next = undefined;
    try {
      await this.#sync();
    } catch (error) {
      this.#failure = toError(error);
      this.#failed(this.#failure);
      throw error;
    }
  }
}
