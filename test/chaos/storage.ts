import { execFile } from 'node:child_process';
import { mkdtemp, rmdir, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { MiB } from '../../shared/units.ts';

const run = promisify(execFile);

/** A storage in memory that can be filled up. */
export class SmallStorage {
  static readonly reserveBytes = 128 * MiB;
  static readonly #sizeBytes = 3072 * MiB;
  /**
   * Commands are ended at a quarter of the reserve: below that, and not so little that writes fail.
   */
  static readonly #leftWhenFull = 0.2;

  /** The file system's path; `directory` is for disks, the rest for the test's own files. */
  readonly path: string;

  private constructor(path: string) {
    this.path = path;
  }

  static async create(): Promise<SmallStorage> {
    // Not in /tmp, since NFS servers get a copy of the libraries of SlowCalls: theirs is a link.
    const path = await mkdtemp('/var/tmp/berth-chaos-');
    await run('mount', ['-t', 'tmpfs', '-o', `size=${SmallStorage.#sizeBytes}`, 'chaos', path]);
    return new SmallStorage(path);
  }

  get directory(): string {
    return join(this.path, 'storage');
  }

  /** Leaves nearly no free space. */
  async fill(): Promise<void> {
    const { blocks, bfree, bsize } = await statfs(this.path);
    const left = SmallStorage.reserveBytes * SmallStorage.#leftWhenFull;
    await this.#resize((blocks - bfree) * bsize + left);
  }

  async free(): Promise<void> {
    await this.#resize(SmallStorage.#sizeBytes);
  }

  /** @throws Error when something still uses it */
  async remove(): Promise<void> {
    await run('umount', [this.path]);
    await rmdir(this.path);
  }

  async #resize(bytes: number): Promise<void> {
    await run('mount', ['-o', `remount,size=${Math.ceil(bytes)}`, this.path]);
  }
}
