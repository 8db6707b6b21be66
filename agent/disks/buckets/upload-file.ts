import { createHash, randomBytes } from 'node:crypto';
import { close, constants, fdatasync, read } from 'node:fs';
import { rename } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { errnoOf } from '../../../shared/errors.ts';
import { MiB } from '../../../shared/units.ts';
import { openBeneath } from '../disk-calls.ts';
import { native } from '../../native/native.ts';
import { atPath } from './beneath.ts';
import { type Bucket, BucketError, type BucketObject, type WriteTerms } from './bucket.ts';
import { type DiskIndex, isAbsent } from './disk-index.ts';
import { conflictName } from './key-names.ts';
import {
  type BucketPaths,
  fileStats,
  isSame,
  PLACEHOLDER_ATTRIBUTE,
  putPlaceholder,
  stampsOf,
} from './placeholders.ts';

/** The paths, index and bucket that uploads of a disk's files work on. */
export interface FileUploadParts {
  readonly paths: BucketPaths;
  readonly index: DiskIndex;
  readonly bucket: Bucket;
  /** Notes that both sides had changed a key. */
  readonly noteConflict: (key: string, reason: string) => void;
}

const readAsync = promisify(read);

/**
 * A file's ctime moves with the kernel's clock tick, of at most 10 ms. A file whose ctime is older
 * than this when it is read gets another ctime from whatever is written after that.
 */
export const TICK_MS = 20;
/** A file that never rests is uploaded as it is and again the next time. */
const RESTS_MAX = 3;
/** Larger files that conflict are not compared with their objects byte for byte. */
const COMPARED_BYTES_MAX = 64 * MiB;

/**
 * Names what is uploaded to a path from now on; see decision 0056. Make the index durable after it.
 */
export function expectUpload(index: DiskIndex, path: string): string {
  const known = index.pendingMark(path);
  if (known !== undefined) return known;
  const mark = randomBytes(8).toString('hex');
  index.setPending(path, mark);
  return mark;
}

async function pendingMark(index: DiskIndex, path: string): Promise<string> {
  const known = index.pendingMark(path);
  if (known !== undefined) return known;
  const mark = expectUpload(index, path);
  await index.sync();
  return mark;
}

/** The mark of one version of the file; 0 for one that may change without a trace. */
const markAt = (mark: string, ctimeNs: bigint): string => `${mark}-${ctimeNs}`;

/** Whether nobody but this disk has written what is there. */
export function isKnownObject(
  index: DiskIndex,
  path: string,
  present: BucketObject | undefined,
): boolean {
  if (present === undefined || present.etag === index.get(path)?.etag) return true;
  const mark = index.pendingMark(path);
  return mark !== undefined && present.mark?.startsWith(`${mark}-`) === true;
}

/**
 * Uploads a file unless it is what its object is. When both sides have changed, the file gets
 * another name.
 * @throws BucketError `changed` when the object was changed during it
 */
export async function uploadFile(
  parts: FileUploadParts,
  path: string,
  signal: AbortSignal,
): Promise<void> {
  const { paths, index, bucket } = parts;
  // Waits until a placeholder is filled.
  const file = await openFile(paths, path);
  if (file === undefined) return; // The file was removed meanwhile.
  try {
    // Opens may go on without contents if all that watches them was killed at once.
    if ((await native.getAttribute(file, PLACEHOLDER_ATTRIBUTE)) !== undefined) {
      throw new BucketError('disk', 'a file was opened before its contents were there');
    }
    const { stamps, rests } = await restingStamps(file);
    const row = index.get(path);
    // The placeholder was filled meanwhile.
    if (row !== undefined && isSame(row, stamps)) return index.clearPending(path);
    const mark = markAt(await pendingMark(index, path), rests ? stamps.ctimeNs : 0n);
    const present = await bucket.head(path, signal);
    const isOurs = isKnownObject(index, path, present);
    const isThere = await isUploaded(file, stamps.sizeBytes, { present, isOurs, mark });
    if (present !== undefined && !isOurs && !isThere) {
      return await keepBoth(parts, path, present, signal);
    }
    const terms = { replaced: present, mark };
    const object =
      present !== undefined && isThere
        ? present
        : await put(bucket, { path, file, sizeBytes: stamps.sizeBytes }, terms, signal);
    const { etag, modifiedMs } = object;
    const taken = { path, etag, modifiedMs, isPlaceholder: false, ...stamps };
    index.set(rests ? taken : { ...taken, ctimeNs: 0n });
  } finally {
    await promisify(close)(file);
  }
}

/**
 * Opens a file for reading; waits until a placeholder is filled, and with it a thread of the
 * account's share: filling needs others.
 * @returns undefined when there is no file any more, but a directory or a link, for example
 */
export async function openFile(
  { contents }: BucketPaths,
  path: string,
): Promise<number | undefined> {
  try {
    return await openBeneath(contents, path, constants.O_RDONLY);
  } catch (error) {
    if (/^(?:ENOENT|ENOTDIR|EISDIR|ENXIO|EXDEV|ELOOP)$/u.test(errnoOf(error) ?? '')) {
      return undefined;
    }
    throw error;
  }
}

type Stamps = ReturnType<typeof stampsOf>;

/** The file's stamps once its ctime is older than a tick of the clock. */
async function restingStamps(file: number): Promise<{ stamps: Stamps; rests: boolean }> {
  for (let tries = 0; ; tries += 1) {
    const stamps = stampsOf(await fileStats(file));
    const ageMs = Date.now() - Number(stamps.ctimeNs / 1_000_000n);
    if (ageMs >= TICK_MS) return { stamps, rests: true };
    if (tries === RESTS_MAX) return { stamps, rests: false };
    await sleep(TICK_MS);
    await promisify(fdatasync)(file);
  }
}

const put = (
  bucket: Bucket,
  { path, file, sizeBytes }: { path: string; file: number; sizeBytes: number },
  terms: WriteTerms,
  signal: AbortSignal,
): Promise<BucketObject> => {
  const readPart = async (offset: number, length: number): Promise<Buffer> => {
    const buffer = Buffer.allocUnsafe(length);
    let filled = 0;
    while (filled < length) {
      const { bytesRead } = await readAsync(file, buffer, filled, length - filled, offset + filled);
      // The file was truncated meanwhile, and is uploaded again.
      if (bytesRead === 0) buffer.fill(0, filled);
      filled += bytesRead === 0 ? length - filled : bytesRead;
    }
    return buffer;
  };
  return bucket.put(path, { sizeBytes, read: readPart }, terms, signal);
};

/** Whether the object is what the file is: an upload whose answer was lost, for example. */
async function isUploaded(
  file: number,
  sizeBytes: number,
  at: { present: BucketObject | undefined; isOurs: boolean; mark: string },
): Promise<boolean> {
  const { present, isOurs, mark } = at;
  if (present === undefined) return false;
  if (isOurs) {
    return present.mark === mark && !mark.endsWith('-0') && present.sizeBytes === sizeBytes;
  }
  return isEqual(file, sizeBytes, present);
}

/** Whether the object has the bytes of the file: somebody else may have written the same. */
async function isEqual(
  file: number,
  sizeBytes: number,
  { md5, sizeBytes: objectBytes }: BucketObject,
): Promise<boolean> {
  if (md5 === undefined || objectBytes !== sizeBytes) return false;
  if (sizeBytes > COMPARED_BYTES_MAX) return false;
  const bytes = Buffer.alloc(sizeBytes);
  await readAsync(file, bytes, 0, sizeBytes, 0);
  return md5 === createHash('md5').update(bytes).digest('hex');
}

/** Both sides have changed the file: it gets another name, and the object its place. */
async function keepBoth(
  parts: FileUploadParts,
  path: string,
  present: BucketObject,
  signal: AbortSignal,
): Promise<void> {
  const { paths, index, noteConflict } = parts;
  const name = conflictName(path, new Date());
  await atPath(paths.contents, path, (from) =>
    atPath(paths.contents, name, (to) => rename(from, to)),
  );
  noteConflict(path, `changed in the bucket and on the disk; the disk's version is ${name}`);
  await uploadFile(parts, name, signal);
  index.delete(path);
  await putPlaceholder(paths, index, present, { isNew: true }).catch((error: unknown) => {
    if (!isAbsent(error) && !String(error).includes('EEXIST')) throw error;
  });
}
