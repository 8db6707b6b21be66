import { setTimeout as pause } from 'node:timers/promises';

/** So much output is taken between two pauses, from all commands together. */
const BYTES_PER_BURST = 1024 ** 2;
const PAUSE_MS = 4;

/**
 * Has the streams of all commands written one piece at a time, in the order in which the pieces
 * came, at no more than some 250 MiB/s: a command that writes faster waits in its pipe. So floods
 * leave the agent's event loop and most threads to others, and each stream gets its share.
 */
export class OutputTurns {
  #last: Promise<void> = Promise.resolve();
  #burst = 0;

  /** Runs `write` when it is its turn. */
  run(bytes: number, write: () => Promise<void>): Promise<void> {
    const turn = this.#last.then(async () => {
      await write();
      this.#burst += bytes;
      if (this.#burst < BYTES_PER_BURST) return;
      this.#burst = 0;
      await pause(PAUSE_MS);
    });
    this.#last = turn.catch(() => undefined);
    return turn;
  }
}
