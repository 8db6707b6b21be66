import { open, readdir, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { native } from '../../native/native.ts';
import { failpoint } from '../../system/failpoint.ts';
import { syncPath } from '../../system/write-durably.ts';

/*
 * Images below the layers of disks that move between hosts. Each host unpacks and builds images for
 * itself, and no two files are the same: a disk that goes to another host needs the very file that it
 * began with. So each of them is copied once to the storage that the hosts share, under a name that
 * its contents give it.
 */

const NAME = /^[0-9a-f]{16}-[0-9a-f]{1,16}\.ext4$/u;

export const baseNamePattern = NAME.source;

/** The copies on a storage. Names are remembered while this agent runs: images never change. */
export class DiskBases {
  readonly #directory: string;
  readonly #hostId: string;
  readonly #names = new Map<string, Promise<string>>();

  constructor(directory: string, hostId: string) {
    this.#directory = directory;
    this.#hostId = hostId;
  }

  /** Removes what a former agent of this host has left half copied. */
  async removeLeftovers(): Promise<void> {
    for (const name of await readdir(this.#directory)) {
      if (name.startsWith(this.#partial)) await rm(join(this.#directory, name), { force: true });
    }
  }

  /** Copies an image unless it is there. @returns the name of the copy */
  share(path: string): Promise<string> {
    const known = this.#names.get(path);
    if (known !== undefined) return known;
    const sharing = this.#share(path);
    this.#names.set(path, sharing);
    sharing.catch(() => this.#names.delete(path));
    return sharing;
  }

  /** Where the copy is. */
  pathOf(name: string): string {
    if (!NAME.test(name)) throw new RangeError(`not the name of an image: ${name}`);
    return join(this.#directory, name);
  }

  get #partial(): string {
    return `.${this.#hostId}-`;
  }

  async #share(path: string): Promise<string> {
    const { size } = await stat(path);
    const source = await open(path, 'r');
    try {
      const hash = await native.copyMemory(source.fd, -1, size);
      const name = `${hash.toString(16).padStart(16, '0')}-${size.toString(16)}.ext4`;
      if ((await readdir(this.#directory)).includes(name)) return name;
      await failpoint('share image', () => this.#copy(source.fd, size, name));
      return name;
    } finally {
      await source.close();
    }
  }

  async #copy(from: number, size: number, name: string): Promise<void> {
    const aside = join(this.#directory, `${this.#partial}${name}`);
    await rm(aside, { force: true });
    const file = await open(aside, 'wx+', 0o400);
    try {
      await file.chmod(0o444); // Each machine reads it as a user of its own.
      await native.copyMemory(from, file.fd, size);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(aside, this.pathOf(name));
    await syncPath(this.#directory);
  }
}
