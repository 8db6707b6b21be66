import { constants, fstat, futimes } from 'node:fs';
import { link, lstat, open, rename, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { randomBytes } from 'node:crypto';
import { errnoOf } from '../../../shared/errors.ts';
import { native } from '../../native/native.ts';
import { atPath } from './beneath.ts';
import type { BucketObject } from './bucket.ts';
import type { DiskIndex, IndexRow } from './disk-index.ts';

/** Marks a file whose contents are still in the bucket; hydrate.c looks for it. */
export const PLACEHOLDER_ATTRIBUTE = 'trusted.berth.placeholder';

/** Where the files of a disk on a bucket are, beneath its mount point. */
export interface BucketPaths {
  readonly mount: string;
  /** The part of the disk that callers see. */
  readonly contents: string;
  /** Placeholders that are being made. */
  readonly staging: string;
  /** Files that were replaced from the bucket and may still be open. */
  readonly replaced: string;
  readonly index: string;
}

export const bucketPathsOf = (mount: string, contents: string): BucketPaths => ({
  mount,
  contents,
  staging: join(mount, 'bucket/staging'),
  replaced: join(mount, 'bucket/replaced'),
  index: join(mount, 'bucket/index'),
});

export const fileStats = (fd: number): ReturnType<typeof lstatBig> =>
  promisify(fstat)(fd, { bigint: true });
const lstatBig = (path: string) => lstat(path, { bigint: true });

type Stamps = Pick<IndexRow, 'inode' | 'sizeBytes' | 'mtimeNs' | 'ctimeNs'>;

export const stampsOf = (stats: Awaited<ReturnType<typeof lstatBig>>): Stamps => ({
  inode: stats.ino,
  sizeBytes: Number(stats.size),
  mtimeNs: stats.mtimeNs,
  ctimeNs: stats.ctimeNs,
});

/** Whether the file is still what it was when the row was written. */
export const isSame = (row: IndexRow, now: Stamps): boolean =>
  row.inode === now.inode &&
  row.sizeBytes === now.sizeBytes &&
  row.mtimeNs === now.mtimeNs &&
  row.ctimeNs === now.ctimeNs;

/** @returns undefined when there is nothing at the path */
export async function stampsAt(root: string, path: string): Promise<Stamps | 'other' | undefined> {
  try {
    const stats = await atPath(root, path, lstatBig);
    return stats.isFile() ? stampsOf(stats) : 'other';
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    if (['ENOTDIR', 'EXDEV', 'ELOOP'].includes(errnoOf(error) ?? '')) return 'other';
    throw error;
  }
}

export const newName = (): string => randomBytes(8).toString('hex');

export const setTimes = async (fd: number, modifiedMs: number): Promise<void> => {
  await promisify(futimes)(fd, modifiedMs / 1000, modifiedMs / 1000);
};

/**
 * Puts a placeholder of the object at its path. The row is known before anybody can open the file.
 * @param isNew fail with EEXIST instead of replacing a file
 */
export async function putPlaceholder(
  paths: BucketPaths,
  index: DiskIndex,
  object: BucketObject,
  { isNew }: { isNew: boolean },
): Promise<void> {
  const { key: path, etag, sizeBytes, modifiedMs } = object;
  const staged = join(paths.staging, newName());
  const before = index.get(path);
  // Empty, so that the helper goes on being asked about its opens (hydrate-opens.c).
  const file = await open(staged, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, 0o644);
  try {
    await file.truncate(sizeBytes);
    await native.setAttribute(file.fd, PLACEHOLDER_ATTRIBUTE, Buffer.from('1'));
    await setTimes(file.fd, modifiedMs);
    const row = { path, etag, modifiedMs, isPlaceholder: true };
    const made = { ...row, ...stampsOf(await fileStats(file.fd)) };
    index.set(made);
    try {
      await atPath(paths.contents, path, (target) =>
        isNew ? link(staged, target) : rename(staged, target),
      );
      if (isNew) await unlink(staged);
    } catch (error) {
      await unlink(staged).catch(() => undefined);
      if (before === undefined) index.delete(path);
      else index.set(before);
      throw error;
    }
    // Unless it was opened meanwhile, and filled.
    if (index.get(path) === made) index.set({ ...row, ...stampsOf(await fileStats(file.fd)) });
  } finally {
    await file.close();
  }
}
