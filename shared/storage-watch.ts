import { statfs } from 'node:fs/promises';
import { repeatInBackground } from './background.ts';
import { type AppError, toError } from './errors.ts';
import type { Logger } from './log.ts';

const CHECK_EVERY_MS = 500;
/** At this part of the reserve, what writes is ended: it could not write much longer anyway. */
const CRITICAL_SHARE = 0.25;

export interface StorageWatchOptions {
  /** The directories whose file systems must keep room. */
  readonly directories: readonly string[];
  /** Free bytes below which new work is refused. */
  readonly reserveBytes: number;
  /** What is thrown at new work meanwhile. */
  readonly refusal: AppError;
  /** The reserve is nearly used up: what writes must end, before writes fail beneath it. */
  readonly onCritical?: () => void;
  readonly log: Logger;
}

/** Watches the room on file systems that must not run full, so that work stops before they do. */
export class StorageWatch {
  readonly #options: StorageWatchOptions;
  readonly #stop: () => void;
  #freeBytes = Number.POSITIVE_INFINITY;

  constructor(options: StorageWatchOptions) {
    this.#options = options;
    this.#stop = repeatInBackground('storage.check', CHECK_EVERY_MS, () => this.#check());
  }

  get isLow(): boolean {
    return this.#freeBytes < this.#options.reserveBytes;
  }

  /** @throws AppError the refusal */
  refuseIfLow(): void {
    if (this.isLow) throw this.#options.refusal;
  }

  close(): void {
    this.#stop();
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
      if (this.#freeBytes < reserveBytes * CRITICAL_SHARE) onCritical?.();
    } catch (error) {
      log.error({ err: toError(error) }, 'storage:notChecked');
    }
  }
}

async function freeBytes(directory: string): Promise<number> {
  const { bavail, bsize } = await statfs(directory);
  return bavail * bsize;
}
