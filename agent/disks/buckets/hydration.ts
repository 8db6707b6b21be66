import { close, fdatasync, ftruncate } from 'node:fs';
import { readlink } from 'node:fs/promises';
import { relative } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { errnoOf, ignoring } from '../../../shared/errors.ts';
import { DISK_LIMITS } from '../limits.ts';
import { native } from '../../native/native.ts';
import { type Bucket, BucketError, type BucketObject } from './bucket.ts';
import type { DiskIndex, IndexRow } from './disk-index.ts';
import { explainFailure } from './explain.ts';
import type { WaitingOpen } from './opens.ts';
import {
  type BucketPaths,
  fileStats,
  PLACEHOLDER_ATTRIBUTE,
  setTimes,
  stampsOf,
} from './placeholders.ts';
import { writeStreamTo } from './write-stream-to.ts';

interface HydrationParts {
  readonly paths: BucketPaths;
  readonly index: DiskIndex;
  /** The present one: its credentials may have been replaced. */
  readonly bucket: () => Bucket;
  /** Frees room on the disk for so many bytes. @throws BucketError when there is none */
  readonly makeRoom: (bytes: number) => Promise<void>;
}

/** The attribute's value while a file is being given up (give-up.c). */
const LEAVING = 'leaving';
/** Its value once a fill has begun: the modification time from before, in nanoseconds. */
const FILLING = /^filling (?<mtimeNs>-?\d{1,19})$/u;

/**
 * Fills a placeholder that somebody opens. The attribute goes last, after the bytes are durable: a
 * file that was filled in part is filled anew at the next open. The time of a file that comes back
 * as it was stays, to the nanosecond: what the object API knows of it is valid for that time only.
 * @throws BucketError when the object cannot be had within `DISK_LIMITS.bucketFillMsMax`
 */
export async function fillPlaceholder(parts: HydrationParts, open: WaitingOpen): Promise<void> {
  const mark = await native.getAttribute(open.fd, PLACEHOLDER_ATTRIBUTE);
  if (mark === undefined) return;
  if (mark.toString() === LEAVING) return keepContents(open);
  const before = stampsOf(await fileStats(open.fd));
  const { index } = parts;
  const known = index.ofInode(before.inode) ?? (await rowOfPath(parts, open.fd, before));
  if (known === undefined) throw new BucketError('missing', 'the object of the file is not known');
  const rowNow = (): IndexRow => index.ofInode(before.inode) ?? known;
  const fd = await open.openToWrite();
  let fetched: Fetched;
  const isCut = before.sizeBytes !== known.sizeBytes;
  const cutAt = isCut ? before.sizeBytes : undefined;
  try {
    const mtimeNs = await keepTime(fd, mark.toString(), before.mtimeNs);
    fetched = await fetchInto(parts, fd, rowNow, cutAt, open.signal);
    await promisify(fdatasync)(fd);
    const { object, row } = fetched;
    if (object.etag === row.etag && !isCut) await native.setTimes(fd, mtimeNs);
    else if (!isCut) await setTimes(fd, object.modifiedMs);
    await native.removeAttribute(fd, PLACEHOLDER_ATTRIBUTE);
  } finally {
    await promisify(close)(fd);
  }
  const stamps = stampsOf(await fileStats(open.fd));
  const { row } = fetched;
  const { etag, modifiedMs, sizeBytes } = fetched.object;
  const filled = { path: row.path, etag, modifiedMs, isPlaceholder: false };
  // Cut by truncate(2) before it was opened: it differs from its object, and is uploaded.
  const changed = { ...stamps, sizeBytes, ctimeNs: 0n };
  const present = index.get(row.path);
  if (present === undefined || isSameObject(present, row)) {
    index.set({ ...filled, ...(isCut ? changed : stamps) });
  }
}

/** Keeps the time of the file over attempts to fill it that fail, or that a crash cuts off. */
async function keepTime(fd: number, mark: string, mtimeNs: bigint): Promise<bigint> {
  const kept = FILLING.exec(mark)?.groups?.['mtimeNs'];
  if (kept !== undefined) return BigInt(kept);
  const value = Buffer.from(`filling ${mtimeNs}`);
  // On a disk that is full, this attempt alone knows the time.
  await native.setAttribute(fd, PLACEHOLDER_ATTRIBUTE, value).catch(ignoring('ENOSPC'));
  return mtimeNs;
}

/**
 * A comparison of the disk with its bucket may have noted other times while the file was filled.
 */
const isSameObject = (a: IndexRow, b: IndexRow): boolean =>
  a.inode === b.inode && a.etag === b.etag;

/** A crash came before it was certain that the file could be given up: it has its contents. */
async function keepContents(open: WaitingOpen): Promise<void> {
  const fd = await open.openToWrite();
  try {
    await native.removeAttribute(fd, PLACEHOLDER_ATTRIBUTE);
  } finally {
    await promisify(close)(fd);
  }
}

/** For a placeholder whose line in the index a crash lost: its path is its key. */
async function rowOfPath(
  { paths }: HydrationParts,
  fd: number,
  stamps: Pick<IndexRow, 'inode' | 'sizeBytes' | 'mtimeNs' | 'ctimeNs'>,
): Promise<IndexRow | undefined> {
  const path = relative(paths.contents, await readlink(`/proc/self/fd/${fd}`));
  if (path === '' || path.startsWith('..')) return undefined;
  return { path, etag: '', modifiedMs: 0, isPlaceholder: true, ...stamps };
}

interface Fetched {
  readonly object: BucketObject;
  /** Where it was fetched from. */
  readonly row: IndexRow;
}

interface FetchTarget {
  readonly fd: number;
  readonly cutAt: number | undefined;
  readonly signal: AbortSignal;
}

/** Fetches an object once. Nothing goes on after a failure. */
async function fetchObject(
  bucket: Bucket,
  path: string,
  { fd, cutAt, signal }: FetchTarget,
): Promise<BucketObject> {
  const ended = new AbortController();
  const timer = setTimeout(() => ended.abort(), DISK_LIMITS.bucketPaceMs);
  try {
    const { body, ...object } = await bucket.get(path, AbortSignal.any([signal, ended.signal]));
    clearTimeout(timer);
    await writeStreamTo(fd, body, { sizeBytes: object.sizeBytes, cutAt });
    return object;
  } catch (error) {
    ended.abort();
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Tries again while the storage is away, busy, or refuses credentials that may be replaced.
 * @param rowNow the file's row: an upload may copy the object of a moved file, and then replace it
 */
async function fetchInto(
  { bucket, makeRoom }: HydrationParts,
  fd: number,
  rowNow: () => IndexRow,
  cutAt: number | undefined,
  signal: AbortSignal,
): Promise<Fetched> {
  const until = performance.now() + DISK_LIMITS.bucketFillMsMax;
  for (let pauseMs = DISK_LIMITS.bucketPauseMsMin; ; pauseMs *= 2) {
    const row = rowNow();
    const { path, sizeBytes } = row;
    try {
      await makeRoom(cutAt ?? sizeBytes);
      const object = await fetchObject(bucket(), path, { fd, cutAt, signal });
      await promisify(ftruncate)(fd, cutAt ?? object.sizeBytes);
      return { object, row };
    } catch (error) {
      const failure = explainFailure(error);
      // The bytes just written may be what fills the disk, and placeholders are never given up to
      // make space.
      if (errnoOf(error) === 'ENOSPC') await native.punch(fd, cutAt ?? sizeBytes);
      const isFinal = failure.failure === 'missing' || signal.aborted;
      if (isFinal || performance.now() + pauseMs > until) throw failure;
      await sleep(pauseMs);
    }
  }
}
