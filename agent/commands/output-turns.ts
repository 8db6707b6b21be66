import { setTimeout as sleep } from 'node:timers/promises';
import { MiB } from '../../shared/units.ts';
import { SerialQueue } from '../system/queues/serial-queue.ts';

/** How much output of all commands together is handled between two pauses. */
const BYTES_PER_BURST = MiB;
const PAUSE_MS = 4;

/**
 * Handles the output of all commands one chunk at a time, in order of arrival, at no more than
 * about 250 MiB/s: a command that writes faster is blocked by its full pipe. A flood of output thus
 * leaves the agent's event loop and most threads free, and each stream gets its share.
 */
export class OutputTurns {
  readonly #queue = new SerialQueue();
  #burst = 0;

  /** Calls `write` when its turn has come. */
  run(bytes: number, write: () => Promise<void>): Promise<void> {
    return this.#queue.add(async () => {
      await write();
      this.#burst += bytes;
      if (this.#burst < BYTES_PER_BURST) return;
      this.#burst = 0;
      await sleep(PAUSE_MS);
    });
  }
}
