import { createHash } from 'node:crypto';
import { close, constants, fdatasync, read } from 'node:fs';
import { rename } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { errnoOf } from '../../shared/errors.ts';
import { MiB } from '../../shared/units.ts';
import { native } from '../native/native.ts';
import { atPlace } from './beneath.ts';
import { type Bucket, BucketError, type BucketObject } from './bucket.ts';
import { type DiskIndex, type IndexRow, isAbsent } from './disk-index.ts';
import { explainFailure } from './explain.ts';
import { inParallel } from './in-parallel.ts';
import { conflictName } from './key-names.ts';
import {
  type BucketPlaces,
  fileStats,
  isSame,
  PLACEHOLDER_ATTRIBUTE,
  putPlaceholder,
  stampsAt,
  stampsOf,
} from './placeholders.ts';
import { PathProblems } from './problems.ts';
import { type WalkedFile, walk } from './walk.ts';

interface UploadParts {
  readonly places: BucketPlaces;
  readonly index: DiskIndex;
  readonly bucket: Bucket;
  /** Notes that both sides had changed a key. */
  readonly noteConflict: (key: string, reason: string) => void;
}

const readAsync = promisify(read);

const FILES_AT_ONCE = 12;
const REMOVALS_AT_ONCE = 16;
/**
 * A file's ctime moves with the kernel's clock tick, of at most 10 ms. A file whose ctime is older than
 * this when it is read gets another ctime from whatever is written after that.
 */
const TICK_MS = 20;
/** A file that never rests is uploaded as it is and again the next time. */
const RESTS_MAX = 3;
/** Larger files that conflict are not compared with their objects byte for byte. */
const COMPARED_BYTES_MAX = 64 * MiB;

/**
 * Brings what was changed on the disk to the bucket: files first, then removals. What fails is found
 * again by the next call, whatever happens in between.
 * @returns names that cannot be keys
 * @throws BucketError
 */
export async function upload(parts: UploadParts, signal: AbortSignal): Promise<PathProblems> {
  const { places, index } = parts;
  const problems = new PathProblems();
  const files = await walk(places.contents, problems);
  const { keyBytesMax } = parts.bucket;
  const changed = files.filter(
    (file) => !isKnown(index, file) && isKey(file, keyBytesMax, problems),
  );
  if (changed.length > 0) {
    // Writes back mapped pages: the next write to one moves the file's ctime again.
    await native.syncFileSystem(places.mount);
    await untilOld(changed);
    await inParallel(changed, FILES_AT_ONCE, (file) => takeFile(parts, file, signal));
    await index.sync();
  }
  const found = new Set(files.map(({ path }) => path));
  const gone = [...index.rows()].filter(({ path }) => !found.has(path));
  await inParallel(gone, REMOVALS_AT_ONCE, (row) => removeObject(parts, row, signal));
  await index.sync();
  return problems;
}

/** Whether the path can be a key; notes it otherwise, and the file stays on the disk alone. */
function isKey({ path }: WalkedFile, keyBytesMax: number, problems: PathProblems): boolean {
  const isFit = Buffer.byteLength(path) <= keyBytesMax;
  if (!isFit) problems.note(path, `longer than the ${keyBytesMax} bytes that a key can have here`);
  return isFit;
}

function isKnown(index: DiskIndex, file: WalkedFile): boolean {
  const row = index.get(file.path);
  return row !== undefined && isSame(row, file);
}

async function takeFile(parts: UploadParts, file: WalkedFile, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  const { places, index } = parts;
  const source = index.ofInode(file.inode);
  if (source?.isPlaceholder === true && source.sizeBytes === file.sizeBytes) {
    const isStill = await native.inodeHasAttribute(
      places.mount,
      Number(file.inode),
      PLACEHOLDER_ATTRIBUTE,
    );
    if (isStill && (await takePlaceholder(parts, file, source, signal))) return;
  }
  await uploadFile(parts, file.path, signal);
}

/** A placeholder was moved, or its mode was changed. @returns false when it must be filled */
async function takePlaceholder(
  { places, index, bucket }: UploadParts,
  { path }: WalkedFile,
  source: IndexRow,
  signal: AbortSignal,
): Promise<boolean> {
  if (source.path === path) {
    const now = await stampsAt(places.contents, path);
    if (now === undefined || now === 'other' || now.inode !== source.inode) return true;
    index.set({ ...source, ...now });
    return true;
  }
  // Over an object of somebody else: filled and uploaded, which sees the conflict.
  if (index.get(path) === undefined && (await bucket.head(path, signal)) !== undefined)
    return false;
  try {
    const object = { ...source, key: source.path };
    const { etag } = await bucket.copy(object, path, signal);
    const now = await stampsAt(places.contents, path);
    if (now === undefined || now === 'other' || now.inode !== source.inode) return true;
    index.set({ ...source, path, etag, ...now });
    return true;
  } catch (error) {
    const { failure } = explainFailure(error);
    if (['changed', 'missing', 'unsupported', 'other'].includes(failure)) return false;
    throw error;
  }
}

async function uploadFile(parts: UploadParts, path: string, signal: AbortSignal): Promise<void> {
  const { places, index, bucket } = parts;
  // Waits until a placeholder is filled.
  const file = await openFile(places, path);
  if (file === undefined) return; // It was removed meanwhile.
  try {
    // Opens may go on without contents if all that watches them was killed at once.
    if ((await native.getAttribute(file, PLACEHOLDER_ATTRIBUTE)) !== undefined) {
      throw new BucketError('other', 'a file was opened before its contents were there');
    }
    const { stamps, rests } = await restingStamps(file);
    const row = index.get(path);
    if (row !== undefined && isSame(row, stamps)) return; // It was only filled meanwhile.
    const present = await bucket.head(path, signal);
    const isOurs = present === undefined || present.etag === row?.etag;
    if (!isOurs && !(await isEqual(file, stamps.sizeBytes, present))) {
      return await keepBoth(parts, path, present, signal);
    }
    const object = isOurs
      ? await put(bucket, { path, file, sizeBytes: stamps.sizeBytes }, present, signal)
      : present;
    const { etag, modifiedMs } = object;
    const taken = { path, etag, modifiedMs, isPlaceholder: false, ...stamps };
    index.set(rests ? taken : { ...taken, ctimeNs: 0n });
  } finally {
    await promisify(close)(file);
  }
}

/** @returns undefined when there is no file any more, but a directory or a link, for example */
async function openFile({ contents }: BucketPlaces, path: string): Promise<number | undefined> {
  try {
    return await native.openBeneath(contents, path, constants.O_RDONLY);
  } catch (error) {
    if (/^(?:ENOENT|ENOTDIR|EISDIR|ENXIO|EXDEV|ELOOP)$/u.test(errnoOf(error) ?? '')) {
      return undefined;
    }
    throw error;
  }
}

/** Waits once for all of them; see {@link TICK_MS}. */
async function untilOld(files: readonly WalkedFile[]): Promise<void> {
  const newestMs = files.reduce((max, file) => Math.max(max, Number(file.ctimeNs / 1_000_000n)), 0);
  const leftMs = newestMs + TICK_MS - Date.now();
  if (leftMs > 0) await sleep(Math.min(leftMs + 1, TICK_MS));
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

/** @param replaced the object that the file takes the place of */
const put = (
  bucket: Bucket,
  { path, file, sizeBytes }: { path: string; file: number; sizeBytes: number },
  replaced: BucketObject | undefined,
  signal: AbortSignal,
): Promise<BucketObject> => {
  const readPart = async (offset: number, length: number): Promise<Buffer> => {
    const buffer = Buffer.allocUnsafe(length);
    let filled = 0;
    while (filled < length) {
      const { bytesRead } = await readAsync(file, buffer, filled, length - filled, offset + filled);
      if (bytesRead === 0) buffer.fill(0, filled); // It was cut meanwhile, and is uploaded again.
      filled += bytesRead === 0 ? length - filled : bytesRead;
    }
    return buffer;
  };
  return bucket.put(path, { sizeBytes, read: readPart }, replaced, signal);
};

/** Whether the object is what the file is: an upload whose answer was lost, for example. */
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
  parts: UploadParts,
  path: string,
  present: BucketObject,
  signal: AbortSignal,
): Promise<void> {
  const { places, index, noteConflict } = parts;
  const name = conflictName(path, new Date());
  await atPlace(places.contents, path, (from) =>
    atPlace(places.contents, name, (to) => rename(from, to)),
  );
  noteConflict(path, `changed in the bucket and on the disk; the disk's version is ${name}`);
  await uploadFile(parts, name, signal);
  index.delete(path);
  await putPlaceholder(places, index, present, { isNew: true }).catch((error: unknown) => {
    if (!isAbsent(error) && !String(error).includes('EEXIST')) throw error;
  });
}

/** The file is gone, so its object goes, unless somebody else has changed that. */
async function removeObject(
  { places, index, bucket }: UploadParts,
  row: IndexRow,
  signal: AbortSignal,
): Promise<void> {
  const now = await stampsAt(places.contents, row.path);
  if (now !== undefined && now !== 'other') return; // It was made anew meanwhile.
  // A walk can miss a file that is moved during it. The bucket has the only copy of a placeholder's.
  const { inode } = row;
  if (index.ofInode(inode) === row) {
    const isElsewhere = await native.inodeHasAttribute(
      places.mount,
      Number(inode),
      PLACEHOLDER_ATTRIBUTE,
    );
    if (isElsewhere) return;
  }
  const present = await bucket.head(row.path, signal);
  if (present !== undefined && present.etag === row.etag) await bucket.remove(present, signal);
  index.delete(row.path);
}
