import { createHash } from 'node:crypto';
import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';
import { SerialQueue } from '../system/queues/serial-queue.ts';
import { sweepLoops } from './mount.ts';

/**
 * Loop device numbers per host, as in disk.h; the first range belongs to the rest of the system.
 */
const NUMBERS = 1024;
/** With partitions on loop devices enabled, the kernel's numbers end at 65,535. */
const RANGES = 63;
const SWEEP_AFTER_MS = 5_000;

/**
 * The numbers of the loop devices that this host creates, one device for each attachment. Existing
 * devices are never reused: opening one whose storage hangs would hang too.
 */
export class LoopDevices {
  /** Two hosts on one machine may have the same range. */
  readonly firstNumber: number;
  readonly #log: Logger;
  #timer: NodeJS.Timeout | undefined;
  readonly #sweeps = new SerialQueue();

  constructor(hostId: string, log: Logger) {
    const hash = createHash('sha256').update(hostId).digest().readUInt32BE();
    this.firstNumber = NUMBERS * (1 + (hash % RANGES));
    this.#log = log;
  }

  /** Removes unused devices in the background; the kernel takes a while for each. */
  sweepSoon(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      runInBackground('loop.sweep', () => this.#sweeps.add(() => this.#sweep()));
    }, SWEEP_AFTER_MS);
  }

  /** Removes the devices that are left. */
  async close(): Promise<void> {
    clearTimeout(this.#timer);
    await this.#sweeps.add(() => this.#sweep());
  }

  async #sweep(): Promise<void> {
    try {
      await sweepLoops(this.firstNumber);
    } catch (error) {
      this.#log.warn({ err: toError(error) }, 'loop:sweepFailed');
    }
  }
}
