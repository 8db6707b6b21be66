import { repeatInBackground } from '../../shared/background.ts';
import type { SpaceAlert } from '../../shared/directory/space-alert.ts';
import { AppError, toError } from '../../shared/errors.ts';
import { REGION_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import { StorageWatch } from '../../shared/storage-watch.ts';

export interface DirectorySpaceOptions {
  readonly alert: SpaceAlert;
  /** Where Redis keeps its files, on the node that can see them. */
  readonly redisDataDir: string | undefined;
  readonly reserveBytes: number;
  readonly log: Logger;
}

const refusal = new AppError(
  'directory_full',
  'the directory is almost full; nothing was begun; try again later',
);

/**
 * Keeps new work away while the storage or memory of Redis is nearly full: Redis ends itself when
 * it cannot write its file, and the kernel ends it when it takes too much memory. A node beside
 * Redis watches the storage and tells the others through Redis.
 */
export class DirectorySpace {
  readonly #options: DirectorySpaceOptions;
  readonly #watch: StorageWatch | undefined;
  readonly #stop: () => void;
  #isLow = false;

  constructor(options: DirectorySpaceOptions) {
    const { redisDataDir, reserveBytes, log } = options;
    this.#options = options;
    if (redisDataDir !== undefined) {
      this.#watch = new StorageWatch({ directories: [redisDataDir], reserveBytes, refusal, log });
    }
    this.#stop = repeatInBackground(
      'directory.checkSpace',
      REGION_LIMITS.directorySpaceCheckMs,
      () => this.#refresh(),
    );
  }

  /** Where Redis keeps its files; undefined on a node that cannot see them. */
  get freeBytes(): number | undefined {
    return this.#watch?.freeBytes;
  }

  get reserveBytes(): number {
    return this.#options.reserveBytes;
  }

  /** @throws AppError `directory_full` */
  refuseIfLow(): void {
    this.#watch?.refuseIfLow();
    if (this.#isLow) throw refusal;
  }

  close(): void {
    this.#stop();
    this.#watch?.close();
  }

  async #refresh(): Promise<void> {
    const { alert, log } = this.#options;
    try {
      if (this.#watch?.isLow === true) await alert.raise();
      this.#isLow = (await alert.isRaised()) || (await alert.isMemoryLow());
    } catch (error) {
      log.warn({ err: toError(error) }, 'directory:spaceUnknown');
    }
  }
}
