import { close, constants } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { promisify } from 'node:util';
import { errnoOf } from '../../../shared/errors.ts';
import { openBeneath } from '../disk-calls.ts';
import { native } from '../../native/native.ts';
import type { Bucket } from './bucket.ts';
import type { DiskIndex, IndexRow } from './disk-index.ts';
import { inParallel } from './in-parallel.ts';
import {
  type BucketPaths,
  fileStats,
  isSame,
  PLACEHOLDER_ATTRIBUTE,
  stampsOf,
} from './placeholders.ts';
import { PathProblems } from './problems.ts';
import { type WalkedFile, walk } from './walk.ts';

interface GiveUpParts {
  readonly paths: BucketPaths;
  readonly index: DiskIndex;
  readonly bucket: Bucket;
  /** The fanotify group that watches opens. */
  readonly fanotifyGroup: number;
  /** Works on a file while nobody fills it. */
  readonly inTurn: <T>(inode: bigint, work: () => Promise<T>) => Promise<T>;
}

const FILES_AT_ONCE = 8;
const ROOM_BLOCK_BYTES = 4096;

export interface DiskRoom {
  readonly freeBytes: number;
  readonly totalBytes: number;
}

export async function roomOn(mount: string): Promise<DiskRoom> {
  const { bavail, blocks, bsize } = await statfs(mount);
  return { freeBytes: bavail * bsize, totalBytes: blocks * bsize };
}

/**
 * Makes files placeholders again until so much room is free, those that were not read for longest
 * first. Only files that are what their objects are, and that nobody has open (give-up.c).
 * @throws BucketError when the bucket cannot be asked
 */
export async function giveUpFiles(
  parts: GiveUpParts,
  freeBytes: number,
  signal: AbortSignal,
): Promise<void> {
  const { paths, index } = parts;
  const files = await walk(paths.contents, new PathProblems());
  const clean = files
    .filter((file) => file.sizeBytes > 0 && isClean(index.get(file.path), file))
    .sort((a, b) => (a.atimeNs < b.atimeNs ? -1 : 1));
  let room = (await roomOn(paths.mount)).freeBytes;
  await inParallel(clean, FILES_AT_ONCE, async (file) => {
    if (room >= freeBytes) return;
    signal.throwIfAborted();
    if (await parts.inTurn(file.inode, () => giveUp(parts, file, signal))) {
      room += Math.ceil(file.sizeBytes / ROOM_BLOCK_BYTES) * ROOM_BLOCK_BYTES;
    }
  });
  await index.sync();
}

const isClean = (row: IndexRow | undefined, file: WalkedFile): boolean =>
  row !== undefined && !row.isPlaceholder && isSame(row, file);

/** @returns whether it was given up */
async function giveUp(
  { paths, index, bucket, fanotifyGroup }: GiveUpParts,
  { path }: WalkedFile,
  signal: AbortSignal,
): Promise<boolean> {
  const row = index.get(path);
  if (row === undefined) return false;
  const object = await bucket.head(path, signal);
  if (object?.etag !== row.etag) return false; // The next refresh deals with it.
  const fd = await openToGiveUp(paths, path);
  if (fd === undefined) return false;
  try {
    if (stampsOf(await fileStats(fd)).inode !== row.inode) return false;
    const { mtimeNs, ctimeNs } = row;
    const attribute = PLACEHOLDER_ATTRIBUTE;
    if (!(await native.giveUpContents(fd, attribute, mtimeNs, ctimeNs, fanotifyGroup)))
      return false;
    if (index.get(path) === row) {
      index.set({ ...row, ...stampsOf(await fileStats(fd)), isPlaceholder: true });
    }
    return true;
  } finally {
    await promisify(close)(fd);
  }
}

/** @returns undefined when it is not there any more, or is a program that runs, for example */
async function openToGiveUp({ contents }: BucketPaths, path: string): Promise<number | undefined> {
  try {
    return await openBeneath(contents, path, constants.O_WRONLY);
  } catch (error) {
    if (UNAVAILABLE.test(errnoOf(error) ?? '')) return undefined;
    throw error;
  }
}

const UNAVAILABLE = /^(?:ENOENT|ENOTDIR|EISDIR|ENXIO|EXDEV|ELOOP|ETXTBSY|EPERM|EACCES|EAGAIN)$/u;
