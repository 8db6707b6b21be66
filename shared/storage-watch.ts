import { opendir, stat, statfs } from 'node:fs/promises';
import { repeatInBackground } from './background.ts';
import { AppError, toError } from './errors.ts';
import { LIMITS } from './limits.ts';
import type { Logger } from './log.ts';

const CHECK_EVERY_MS = 500;
/** At this share of the reserve, writers are ended: they could not write much longer anyway. */
const CRITICAL_SHARE = 0.25;

export interface StorageWatchOptions {
  /** Begins the sentences about it. */
  readonly name?: string;
  /** The directories whose file systems must keep free space. */
  readonly directories: readonly string[];
  /** @throws Error when the storage is not there, though its directory is */
  readonly check?: () => Promise<void>;
  /** Free bytes below which new work is refused. */
  readonly reserveBytes: number;
  /** The error for new work while free space is below the reserve. */
  readonly refusal: AppError;
  /** Called when the reserve is nearly used up: end what writes before its writes fail. */
  readonly onCritical?: () => void;
  readonly log: Logger;
}

/** Free space of the file system of a directory. */
export interface FileSystemSpace {
  readonly freeBytes: number;
  /** `st_dev`: directories that have it in common share their free space. */
  readonly device: number;
}

/**
 * Watches the free space of file systems that must not run full, so that work stops before they do.
 */
export class StorageWatch {
  readonly #options: StorageWatchOptions;
  readonly #stop: () => void;
  #freeBytes = Number.POSITIVE_INFINITY;
  /** By directory. */
  #spaces: ReadonlyMap<string, FileSystemSpace> = new Map();
  /** Why the last check failed. */
  #failure: string | undefined;
  /** When the question under way was asked, by `performance.now()`. */
  #askedAt: number | undefined;

  constructor(options: StorageWatchOptions) {
    this.#options = options;
    this.#stop = repeatInBackground('storage.check', CHECK_EVERY_MS, () => this.#check());
  }

  /**
   * Free bytes of the file system that has the least, at the last check; infinite before the first
   * one.
   */
  get freeBytes(): number {
    return this.#freeBytes;
  }

  /**
   * The space of one of the watched directories, for work that frees space in that one alone.
   * @returns undefined before the first check
   */
  spaceOf(directory: string): FileSystemSpace | undefined {
    return this.#spaces.get(directory);
  }

  get reserveBytes(): number {
    return this.#options.reserveBytes;
  }

  get isLow(): boolean {
    return this.#freeBytes < this.reserveBytes;
  }

  /** Whether the storage does not report its free space: any other call to it would hang, too. */
  get isSilent(): boolean {
    if (this.#askedAt === undefined) return false;
    return performance.now() - this.#askedAt > LIMITS.storageSilenceMsMax;
  }

  /** Why the storage cannot be used at the moment, or undefined. */
  get problem(): string | undefined {
    const { name = 'the storage' } = this.#options;
    if (this.isSilent) return `${name} does not answer`;
    return this.#failure === undefined ? undefined : `${name} fails: ${this.#failure}`;
  }

  /** @throws AppError the refusal; `unavailable` while the storage cannot be used */
  refuseIfLow(): void {
    if (this.isLow) throw this.#options.refusal;
    this.refuseIfUnusable();
  }

  /** @throws AppError `unavailable` while the storage cannot be used */
  refuseIfUnusable(): void {
    if (this.problem !== undefined) throw new AppError('unavailable', `${this.problem}; try again`);
  }

  close(): void {
    this.#stop();
  }

  async #check(): Promise<void> {
    const { directories, check, reserveBytes, onCritical, log } = this.#options;
    this.#askedAt = performance.now();
    const silence = setTimeout(() => {
      log.error({ directories }, 'storage:silent');
    }, LIMITS.storageSilenceMsMax);
    try {
      const spaces = await Promise.all(directories.map(readSpace));
      await check?.();
      if (this.#failure !== undefined) log.info({ directories }, 'storage:usableAgain');
      this.#failure = undefined;
      const wasLow = this.isLow;
      this.#spaces = new Map(spaces);
      this.#freeBytes = Math.min(...spaces.map(([, { freeBytes }]) => freeBytes));
      if (this.isLow !== wasLow) {
        log.warn({ freeBytes: this.#freeBytes, low: this.isLow }, 'storage:lowChanged');
      }
      if (this.#freeBytes < reserveBytes * CRITICAL_SHARE) onCritical?.();
    } catch (error) {
      const { message } = toError(error);
      if (message !== this.#failure) log.error({ err: toError(error) }, 'storage:checkFailed');
      this.#failure = message;
    } finally {
      clearTimeout(silence);
      if (this.isSilent) log.info({ directories }, 'storage:answersAgain');
      this.#askedAt = undefined;
    }
  }
}

async function readSpace(directory: string): Promise<[directory: string, FileSystemSpace]> {
  // A client of CephFS that was shut out tells the free space all the same, and refuses all else.
  await (await opendir(directory)).close();
  const [{ bavail, bsize }, { dev }] = await Promise.all([statfs(directory), stat(directory)]);
  return [directory, { freeBytes: bavail * bsize, device: dev }];
}
