import { setTimeout as sleep } from 'node:timers/promises';
import { MiB } from '../../shared/units.ts';
import { SerialQueue } from '../queues/serial-queue.ts';

/** So much output is taken between two pauses, from all commands together. */
const BYTES_PER_BURST = MiB;
const PAUSE_MS = 4;

/**
 * Has the streams of all commands written one piece at a time, in the order in which the pieces
 * came, at no more than some 250 MiB/s: a command that writes faster waits in its pipe. So floods
 * leave the agent's event loop and most threads to others, and each stream gets its share.
 */
export class OutputTurns {
  readonly #queue = new SerialQueue();
  #burst = 0;

  /** Runs `write` when it is its turn. */
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
