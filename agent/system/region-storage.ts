import { mkdir } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { AppError, errnoOf, toError } from '../../shared/errors.ts';
import { exists } from './exists.ts';
import { paths } from './paths.ts';
import { checkMark, markOf, markStorage, readMark } from './storage-mark.ts';
import { writeDurably } from './write-durably.ts';
import { readOptional } from './read-optional.ts';

export interface RegionStorageDeps {
  /** `STORAGE_DIR`. */
  readonly directory: string;
  readonly dataDir: string;
  /** Whether no other host is known to the region, so that nobody can have laid its storage out. */
  readonly isFirstHost: () => Promise<boolean>;
}

/**
 * The storage that a region's hosts share for disks and images. Nothing is written to it, and
 * nothing is taken for missing on it, before it has shown its mark: below a mount point on which
 * nothing is mounted there is a directory as well.
 */
export class RegionStorage {
  readonly directory: string;
  readonly #deps: RegionStorageDeps;
  #id: string | undefined;

  constructor(deps: RegionStorageDeps) {
    this.directory = deps.directory;
    this.#deps = deps;
  }

  /**
   * The first time it notes on this host which storage it found, and lays out a new one for the
   * first host of a region.
   * @throws Error unless the storage is there that this host has always had
   */
  async check(): Promise<void> {
    if (this.#id === undefined) this.#id = await this.#claim();
    else await checkMark(this.directory, this.#id);
  }

  /** @throws AppError `unavailable` unless the storage is there */
  async refuseIfMissing(): Promise<void> {
    try {
      await this.check();
    } catch (cause) {
      throw new AppError('unavailable', 'the host does not have its storage now; try again', {
        cause,
      });
    }
  }

  async #claim(): Promise<string> {
    const { directory, dataDir } = this.#deps;
    const note = paths.diskStorage(dataDir);
    const known = await readOptional(note);
    if (known !== undefined) {
      await this.#checkKnown(known, note);
      return known;
    }
    const id = (await readMark(directory)) ?? (await this.#layOut());
    await writeDurably(dirname(note), basename(note), id);
    return id;
  }

  async #checkKnown(known: string, note: string): Promise<void> {
    try {
      await checkMark(this.directory, known);
    } catch (cause) {
      const { message } = toError(cause);
      if (errnoOf(cause) !== undefined) {
        const once = 'Mount it once more: it may have shut this host out';
        throw new Error(`STORAGE_DIR cannot be read: ${message}. ${once}`, { cause });
      }
      throw new Error(
        `STORAGE_DIR is not the storage that this host has had: ${message}. Mount it. If it is lost ` +
          `for good, remove ${note} and make ${join(this.directory, 'disks')} on the new one`,
        { cause },
      );
    }
  }

  /** Marks a storage that has no mark, if it is one: new, or from before there were marks. */
  async #layOut(): Promise<string> {
    const { directory, isFirstHost } = this.#deps;
    const isOlder = await exists(join(directory, 'disks'));
    if (!isOlder && !(await isFirstHost())) {
      // Another host may have marked it before it told the directory of itself.
      const id = await readMark(directory);
      if (id !== undefined) return id;
      throw new Error(
        `STORAGE_DIR is not the storage of the region, which has other hosts: there is no ` +
          `${markOf(directory)}. Mount the storage there, or make ${join(directory, 'disks')} if it is new`,
      );
    }
    await mkdir(directory, { recursive: true, mode: 0o700 });
    return markStorage(directory);
  }
}
