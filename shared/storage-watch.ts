import { statfs } from 'node:fs/promises';
import { repeatInBackground } from './background.ts';
import { AppError, toError } from './errors.ts';
import { LIMITS } from './limits.ts';
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
  /** Since when an answer is awaited, on the clock of `performance.now()`. */
  #askedAt: number | undefined;

  constructor(options: StorageWatchOptions) {
    this.#options = options;
    this.#stop = repeatInBackground('storage.check', CHECK_EVERY_MS, () => this.#check());
  }

  get isLow(): boolean {
    return this.#freeBytes < this.#options.reserveBytes;
  }

  /** The storage does not say how much room it has: who asks it for anything else will wait, too. */
  get isSilent(): boolean {
    if (this.#askedAt === undefined) return false;
    return performance.now() - this.#askedAt > LIMITS.storageSilenceMsMax;
  }

  /** @throws AppError the refusal; `unavailable` while the storage does not answer */
  refuseIfLow(): void {
    if (this.isLow) throw this.#options.refusal;
    if (this.isSilent) throw new AppError('unavailable', 'the storage does not answer; try again');
  }

  close(): void {
    this.#stop();
  }

  async #check(): Promise<void> {
    const { directories, reserveBytes, onCritical, log } = this.#options;
    this.#askedAt = performance.now();
    const silence = setTimeout(() => {
      log.error({ directories }, 'storage:silent');
    }, LIMITS.storageSilenceMsMax);
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
    } finally {
      clearTimeout(silence);
      if (this.isSilent) log.info({ directories }, 'storage:answersAgain');
      this.#askedAt = undefined;
    }
  }
}

async function freeBytes(directory: string): Promise<number> {
  const { bavail, bsize } = await statfs(directory);
  return bavail * bsize;
}
