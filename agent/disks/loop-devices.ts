import { createHash } from 'node:crypto';
import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';
import { SerialQueue } from '../queues/serial-queue.ts';
import { sweepLoops } from './disk-mount.ts';

/** Each host has so many numbers, as disk.h says; the first ones are everybody's. */
const NUMBERS = 1024;
/** A kernel that is set up for partitions of loop devices has numbers up to 65,535. */
const RANGES = 63;
const SWEEP_AFTER_MS = 5_000;

/**
 * The numbers of the loop devices that this host makes, one device for each attachment. Never one
 * that is there already: whoever opens a device that hangs hangs with it.
 */
export class LoopDevices {
  /** Hosts on one machine may have the same ones. */
  readonly firstNumber: number;
  readonly #log: Logger;
  #timer: NodeJS.Timeout | undefined;
  readonly #sweeps = new SerialQueue();

  constructor(hostId: string, log: Logger) {
    const hash = createHash('sha256').update(hostId).digest().readUInt32BE();
    this.firstNumber = NUMBERS * (1 + (hash % RANGES));
    this.#log = log;
  }

  /** Removes what nothing is attached to any more; that takes the kernel a while for each. */
  sweepSoon(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      runInBackground('loop.sweep', () => this.#sweeps.add(() => this.#sweep()));
    }, SWEEP_AFTER_MS);
  }

  /** Removes what is left. */
  async close(): Promise<void> {
    clearTimeout(this.#timer);
    await this.#sweeps.add(() => this.#sweep());
  }

  async #sweep(): Promise<void> {
    try {
      await sweepLoops(this.firstNumber);
    } catch (error) {
      this.#log.warn({ err: toError(error) }, 'loop:notSwept');
    }
  }
}
