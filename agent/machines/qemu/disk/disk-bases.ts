import { link, open, readdir, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf, ignoring } from '../../../../shared/errors.ts';
import { native } from '../../../native/native.ts';
import { failpoint } from '../../../system/failpoint.ts';
import { syncPath } from '../../../system/write-durably.ts';

/*
 * Images below the layers of disks that move between hosts. Each host unpacks and builds images for
 * itself, and no two files are the same: a disk that goes to another host needs the very file that
 * it began with. So each of them is copied once to the storage that the hosts share, under a name
 * that its contents give it. Each machine has a hard link of its own to that copy, in its directory
 * and under the same name: it goes along when the machine moves, and the copy's count of links
 * tells whether a machine needs it. To remove the copy's name takes nothing from a machine that has
 * a link, and who finds no copy to link to makes it anew. So hosts may copy, link and remove at the
 * same time.
 */

const NAME = /^[0-9a-f]{16}-[0-9a-f]{1,16}\.ext4$/u;

export const baseNamePattern = NAME.source;

/** How many names are remembered. */
const NAMES_MAX = 1_000;
/** A copy removed as often as it was made is no accident. */
const ATTEMPTS_MAX = 5;

/** A machine's own link to the copy of an image. @param name the copy's */
export const baseLinkOf = (directory: string, name: string): string => join(directory, name);

/** A copy that no machine has a link to. */
interface UnusedCopy {
  readonly name: string;
  /** When the last link was removed, or the copy made, by the clock of the storage. */
  readonly unusedSinceMs: number;
}

/** The copies on a storage. */
export class DiskBases {
  readonly #directory: string;
  readonly #hostId: string;
  /**
   * By path and version of the file: an image that was evicted may be built again, not the same.
   */
  readonly #names = new Map<string, Promise<string>>();
  /** The copies that are being made, by name. */
  readonly #copies = new Map<string, Promise<void>>();

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

  /**
   * Gives a machine's directory its link to the copy of an image, which is made if there is none.
   * The link is durable once the directory is.
   * @returns the copy's name
   * @throws Error ENOENT without the image or the directory
   */
  async hold(directory: string, path: string): Promise<string> {
    const name = await this.nameOf(path);
    for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt += 1) {
      if (await this.link(directory, name)) return name;
      await this.#copyOnce(path, name);
    }
    throw new Error(`the copy of ${path} was removed as often as it was made`);
  }

  /**
   * Gives a machine's directory its link to a copy, unless it has it.
   * @param from a link of another machine, which stays also while the copy's name is removed
   * @returns false when there is no such copy, or it has all the links that the storage allows
   * @throws Error ENOENT without the directory
   */
  async link(directory: string, name: string, from = this.pathOf(name)): Promise<boolean> {
    try {
      await failpoint('link base', () => link(from, baseLinkOf(directory, name)));
      return true;
    } catch (error) {
      const code = errnoOf(error) ?? '';
      if (code === 'EEXIST') return true;
      if (code === 'ENOENT') await stat(directory);
      else if (code !== 'EMLINK') throw error;
      return false;
    }
  }

  /** The name that an image's contents give its copy. */
  async nameOf(path: string): Promise<string> {
    const { ino, size, mtimeNs } = await stat(path, { bigint: true });
    const version = `${path} ${ino} ${size} ${mtimeNs}`;
    const known = this.#names.get(version);
    if (known !== undefined) return known;
    if (this.#names.size >= NAMES_MAX) this.#names.clear();
    const naming = nameOfContents(path);
    this.#names.set(version, naming);
    naming.catch(() => this.#names.delete(version));
    return naming;
  }

  /** Where the copy is, for as long as a machine has a link to it. */
  pathOf(name: string): string {
    if (!NAME.test(name)) throw new RangeError(`not the name of an image: ${name}`);
    return join(this.#directory, name);
  }

  /** The copies that no machine has a link to, the longest unused first. */
  async unused(): Promise<UnusedCopy[]> {
    const found: UnusedCopy[] = [];
    for (const name of (await readdir(this.#directory)).filter((each) => NAME.test(each))) {
      const file = await stat(join(this.#directory, name)).catch(ignoring('ENOENT'));
      // A change of the count of links is one of the inode, and nothing else changes it.
      if (file?.nlink === 1) found.push({ name, unusedSinceMs: file.ctimeMs });
    }
    return found.toSorted((a, b) => a.unusedSinceMs - b.unusedSinceMs);
  }

  /** Removes a copy. A machine that has got a link to it meanwhile keeps its own. */
  async remove(name: string): Promise<void> {
    await failpoint('evict base', () => rm(this.pathOf(name), { force: true }));
  }

  get #partial(): string {
    return `.${this.#hostId}-`;
  }

  #copyOnce(path: string, name: string): Promise<void> {
    const under = this.#copies.get(name);
    if (under !== undefined) return under;
    const copying = failpoint('share image', () => this.#copy(path, name)).finally(() =>
      this.#copies.delete(name),
    );
    this.#copies.set(name, copying);
    return copying;
  }

  /** A copy that another host has made meanwhile is replaced by one that is the same. */
  async #copy(path: string, name: string): Promise<void> {
    const aside = join(this.#directory, `${this.#partial}${name}`);
    await rm(aside, { force: true });
    await using source = await open(path, 'r');
    const { size } = await source.stat();
    await using file = await open(aside, 'wx+', 0o400);
    await file.chmod(0o444); // Each machine reads it as a user of its own.
    const hash = await native.copyMemory(source.fd, file.fd, size);
    if (nameFor(hash, size) !== name) throw new Error(`${path} has changed while it was copied`);
    await file.sync();
    await failpoint('place image copy', () => rename(aside, this.pathOf(name)));
    await syncPath(this.#directory);
  }
}

const nameFor = (hash: bigint, size: number): string =>
  `${hash.toString(16).padStart(16, '0')}-${size.toString(16)}.ext4`;

async function nameOfContents(path: string): Promise<string> {
  await using source = await open(path, 'r');
  const { size } = await source.stat();
  return nameFor(await native.copyMemory(source.fd, -1, size), size);
}
