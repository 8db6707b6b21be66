import { statfs } from 'node:fs/promises';
import { AppError, toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';

const CHECK_EVERY_MS = 500;
/** At this part of the reserve, what runs is ended: it could not write much longer anyway. */
const CRITICAL_SHARE = 0.25;

export interface StorageWatchOptions {
  /** The directories whose file systems must keep room. */
  readonly directories: readonly string[];
  /** Free bytes below which new work is refused. */
  readonly reserveBytes: number;
  /** The reserve is nearly used up: what writes must end, before writes fail beneath it. */
  readonly onCritical: (reason: AppError) => void;
  readonly log: Logger;
}

/**
 * Watches the host's storage. Disks are sparse files: when the storage below them is full, writes
 * that a disk has already accepted fail, and its file system breaks. So work stops before that.
 */
export class StorageWatch {
  readonly #options: StorageWatchOptions;
  readonly #timer: NodeJS.Timeout;
  #freeBytes = Number.POSITIVE_INFINITY;

  constructor(options: StorageWatchOptions) {
    this.#options = options;
    this.#timer = setInterval(() => void this.#check(), CHECK_EVERY_MS);
    void this.#check();
  }

  get isLow(): boolean {
    return this.#freeBytes < this.#options.reserveBytes;
  }

  /** @throws AppError `host_full` */
  refuseIfLow(): void {
    if (!this.isLow) return;
    throw new AppError('host_full', 'the storage of the host is almost full; nothing was begun');
  }

  close(): void {
    clearInterval(this.#timer);
  }

  async #check(): Promise<void> {
    const { directories, reserveBytes, onCritical, log } = this.#options;
    try {
      const free = await Promise.all(directories.map(freeBytes));
      const wasLow = this.isLow;
      this.#freeBytes = Math.min(...free);
      if (this.isLow !== wasLow) {
        log.warn({ freeBytes: this.#freeBytes, low: this.isLow }, 'storage:roomChanged');
      }
      if (this.#freeBytes < reserveBytes * CRITICAL_SHARE) {
        onCritical(
          new AppError(
            'outcome_unknown',
            'the storage of the host ran full; the command was ended',
          ),
        );
      }
    } catch (error) {
      log.error({ err: toError(error) }, 'storage:notChecked');
    }
  }
}

async function freeBytes(directory: string): Promise<number> {
  const { bavail, bsize } = await statfs(directory);
  return bavail * bsize;
}
