import { randomBytes } from 'node:crypto';
import { mkdir, open, readdir, readFile, rename, rm, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import type { DiskRecord } from '../../shared/directory/disk-record.ts';
import { errnoOf, toError } from '../../shared/errors.ts';
import type { RootAttrs } from '../../shared/schemas/disk.ts';
import { type DiskManifest, parseManifest } from '../../shared/schemas/disk-manifest.ts';
import { exists } from '../system/exists.ts';
import type { RegionStorage } from '../system/region-storage.ts';
import { run } from '../system/spawn.ts';
import { syncPath, writeDurably } from '../system/write-durably.ts';

const DEFAULT_ROOT_MODE = 0o755;

/**
 * Makes an empty ext4 file system in a sparse file. `lost+found` is removed, since a disk starts
 * out empty for its user; e2fsck recreates it if needed.
 */
async function makeFileSystem(path: string, sizeBytes: number, root: RootAttrs): Promise<void> {
  const file = await open(path, 'wx', 0o600);
  await file.close();
  await truncate(path, sizeBytes);
  const owner = `root_owner=${root.uid ?? 0}:${root.gid ?? 0}`;
  const extended = `lazy_itable_init=1,lazy_journal_init=1,${owner}`;
  // Small file systems would get blocks of 1 KiB, which cannot hold the metadata of an object.
  const blocks = ['-b', '4096', '-I', '256'];
  // Attributes that do not fit there get an inode: the sizes of the parts of a large object.
  const features = ['-O', 'ea_inode'];
  const format = [
    '-q',
    '-t',
    'ext4',
    '-F',
    '-m',
    '0',
    ...blocks,
    ...features,
    '-E',
    extended,
    path,
  ];
  await run('mke2fs', format, { lock: path });
  const mode = (0o040_000 | (root.mode ?? DEFAULT_ROOT_MODE)).toString(8);
  await run('debugfs', ['-w', '-f', '-', path], {
    lock: path,
    input: `rmdir lost+found\nset_inode_field <2> mode 0${mode}\n`,
  });
}

const diskDirectory = (storageDir: string): string => join(storageDir, 'disks');

export const imagePathOf = (storageDir: string, diskId: string): string =>
  join(diskDirectory(storageDir), diskId, 'image.ext4');

/**
 * The files of the region's disks: `<storage>/disks/<id>/image.ext4` and `manifest.json` beside it.
 * The storage may be shared by several hosts; the disk's lease decides which of
 * them may mount an image.
 */
export class DiskFiles {
  readonly #storage: Pick<RegionStorage, 'directory' | 'refuseIfMissing'>;
  readonly #directory: string;
  readonly #sizeBytes: number;
  /** Marks disks that this host is creating or deleting; other hosts leave those alone. */
  readonly #asidePrefix: string;
  readonly #asides = new Set<string>();
  #hasLeftovers = false;

  constructor(
    storage: Pick<RegionStorage, 'directory' | 'refuseIfMissing'>,
    sizeBytes: number,
    hostId: string,
  ) {
    this.#storage = storage;
    this.#directory = diskDirectory(storage.directory);
    this.#sizeBytes = sizeBytes;
    this.#asidePrefix = `.${hostId}-`;
  }

  /**
   * Creates the directory and removes what a crash of this host left unfinished. Idempotent.
   * @throws Error when some of that could not be done; {@link removeLeftovers} repeats it
   */
  async prepare(): Promise<void> {
    this.#hasLeftovers = false;
    try {
      await this.#storage.refuseIfMissing();
      await mkdir(this.#directory, { recursive: true, mode: 0o700 });
      await this.#removeAsides();
    } catch (error) {
      this.#hasLeftovers = true;
      throw error;
    }
  }

  imagePath(diskId: string): string {
    return imagePathOf(this.#storage.directory, diskId);
  }

  /** @throws AppError `unavailable` when nothing is there because the storage is not */
  async exists(diskId: string): Promise<boolean> {
    if (await exists(this.imagePath(diskId))) return true;
    await this.#storage.refuseIfMissing();
    return false;
  }

  /**
   * Creates a disk's file system and manifest; durable when it returns. They are built under
   * another name and renamed, so a crash leaves no disk or a complete one. Does nothing if the disk
   * exists.
   */
  async create(record: DiskRecord): Promise<void> {
    if (await this.exists(record.id)) return;
    const aside = this.#newAside();
    await mkdir(aside, { mode: 0o700 });
    try {
      const image = join(aside, 'image.ext4');
      await makeFileSystem(image, this.#sizeBytes, record.rootAttrs ?? {});
      await syncPath(image);
      await writeDurably(aside, 'manifest.json', JSON.stringify({ version: 1, disk: record }));
      await rename(aside, join(this.#directory, record.id));
      await syncPath(this.#directory);
    } finally {
      await rm(aside, { recursive: true, force: true });
      this.#asides.delete(aside);
    }
  }

  async writeManifest(record: DiskRecord): Promise<void> {
    const text = JSON.stringify({ version: 1, disk: record });
    await writeDurably(join(this.#directory, record.id), 'manifest.json', text);
  }

  /** @throws AppError when the manifest is not one of ours */
  async readManifest(diskId: string): Promise<DiskManifest> {
    return parseManifest(await readFile(join(this.#directory, diskId, 'manifest.json'), 'utf8'));
  }

  /**
   * Deletes image and manifest. They are renamed first, so that the disk disappears in one step.
   * @throws AppError as {@link exists}
   */
  async remove(diskId: string): Promise<void> {
    const doomed = this.#newAside();
    try {
      await rename(join(this.#directory, diskId), doomed);
      await syncPath(this.#directory);
      await rm(doomed, { recursive: true, force: true });
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return await this.#storage.refuseIfMissing();
      this.#hasLeftovers = true;
      throw error;
    } finally {
      this.#asides.delete(doomed);
    }
  }

  /**
   * Removes what a start or a removal of this host could not delete.
   * @throws Error as {@link prepare}
   */
  async removeLeftovers(): Promise<void> {
    if (this.#hasLeftovers) await this.prepare();
  }

  /** Tries to remove each of them. @throws Error of the first that cannot be removed */
  async #removeAsides(): Promise<void> {
    const names = await readdir(this.#directory);
    const asides = names
      .filter((name) => name.startsWith(this.#asidePrefix))
      .map((name) => join(this.#directory, name))
      .filter((path) => !this.#asides.has(path));
    const removals = asides.map((path) => rm(path, { recursive: true, force: true }));
    const failed = (await Promise.allSettled(removals)).find(({ status }) => status === 'rejected');
    if (failed?.status === 'rejected') throw toError(failed.reason);
  }

  #newAside(): string {
    const name = `${this.#asidePrefix}${randomBytes(6).toString('hex')}`;
    const aside = join(this.#directory, name);
    this.#asides.add(aside);
    return aside;
  }

  /** Ids of the disks on the storage. */
  async list(): Promise<string[]> {
    const names = await readdir(this.#directory);
    return names.filter((name) => name.startsWith('dsk-'));
  }
}
