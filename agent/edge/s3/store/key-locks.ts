import { SerialQueue } from '../../../system/queues/serial-queue.ts';

/** Serialises the work on each key; later work waits in order. */
export class KeyLocks {
  /** Queues of the keys that are being worked on. */
  readonly #queues = new Map<string, SerialQueue>();

  async run<T>(key: string, work: () => Promise<T>): Promise<T> {
    const queue = this.#queues.get(key) ?? new SerialQueue();
    this.#queues.set(key, queue);
    try {
      return await queue.add(work);
    } finally {
      if (queue.length === 0) this.#queues.delete(key);
    }
  }
}
