import { close } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { DISK_LIMITS } from '../limits.ts';
import { native } from '../../native/native.ts';
import { BucketError } from './bucket.ts';
import type { DiskIndex, IndexRow } from './disk-index.ts';
import { explainFailure } from './explain.ts';
import { inParallel } from './in-parallel.ts';
import { isSame, PLACEHOLDER_ATTRIBUTE, stampsAt } from './placeholders.ts';
import { PathProblems } from './problems.ts';
import type { Refusals } from './refusals.ts';
import {
  expectUpload,
  type FileUploadParts,
  isKnownObject,
  openFile,
  TICK_MS,
  uploadFile,
} from './upload-file.ts';
import { type WalkedFile, walk } from './walk.ts';

interface UploadParts extends FileUploadParts {
  /** Files that the bucket did not take so far. */
  readonly refusals: Refusals;
  /** Waits for a turn to open a placeholder; its release gives the turn back. */
  readonly openTurn: (signal: AbortSignal) => Promise<{ release(): void }>;
}

const FILES_AT_ONCE = 12;
const REMOVALS_AT_ONCE = 16;
/** A bucket that refuses so many files and takes none is not asked about the others. */
const REFUSALS_IN_A_ROW_MAX = 100;
/** How often a file is looked at again when its object is changed during the upload. */
const CHANGES_MAX = 3;

/**
 * Brings what was changed on the disk to the bucket: files first, then removals. What fails is
 * found again by the next call, whatever happens in between. A file that the bucket refuses holds
 * up no other: it becomes one of the refusals.
 * @returns names that cannot be keys, and whether anything was changed
 * @throws BucketError when the bucket cannot be used
 */
export async function upload(
  parts: UploadParts,
  signal: AbortSignal,
): Promise<{ problems: PathProblems; hasChanges: boolean }> {
  const { paths, index, refusals } = parts;
  const problems = new PathProblems();
  const files = await walk(paths.contents, problems);
  const { keyBytesMax } = parts.bucket;
  const changed = files.filter(
    (file) =>
      !isKnown(index, file) &&
      isKey(file, keyBytesMax, problems) &&
      !refusals.isResting(file.path, file.ctimeNs),
  );
  const attempts = new Attempts(parts, signal);
  let hasChanges = changed.length > 0;
  try {
    if (hasChanges) await takeFiles(parts, { files, changed }, attempts, signal);
    const found = new Map(files.map((file) => [file.path, file]));
    for (const path of [...index.pendingPaths()]) {
      const file = found.get(path);
      if (file !== undefined && isKnown(index, file)) index.clearPending(path);
    }
    if ((await removeObjects(parts, found, attempts, signal)) > 0) hasChanges = true;
    refusals.keep((path) => found.has(path) || index.get(path) !== undefined);
  } finally {
    await index.sync();
  }
  return { problems, hasChanges };
}

/**
 * Does the work of one round, and tells a file that is refused from a bucket that cannot be used.
 */
class Attempts {
  readonly #parts: UploadParts;
  readonly #signal: AbortSignal;
  #refusedInARow = 0;
  #checked: Promise<void> | undefined;

  constructor(parts: UploadParts, signal: AbortSignal) {
    this.#parts = parts;
    this.#signal = signal;
  }

  /** @throws BucketError when the bucket cannot be used */
  async make(path: string, ctimeNs: bigint, work: () => Promise<void>): Promise<void> {
    const { refusals } = this.#parts;
    try {
      await work();
      this.#refusedInARow = 0;
      refusals.forget(path);
    } catch (error) {
      this.#signal.throwIfAborted();
      const failure = explainFailure(error);
      await this.#throwIfOfBucket(failure);
      refusals.note(path, ctimeNs, failure);
      this.#refusedInARow += 1;
      const isTooMuch = refusals.size >= DISK_LIMITS.bucketRefusalsMax;
      if (isTooMuch || this.#refusedInARow >= REFUSALS_IN_A_ROW_MAX) throw failure;
    }
  }

  async #throwIfOfBucket(failure: BucketError): Promise<void> {
    if (failure.failure === 'away' || failure.failure === 'busy') throw failure;
    const late = AbortSignal.timeout(DISK_LIMITS.bucketCheckMsMax);
    this.#checked ??= this.#parts.bucket.check(AbortSignal.any([this.#signal, late]));
    await this.#checked;
  }
}

/** The files that a walk has found. */
interface Found {
  readonly files: readonly WalkedFile[];
  /** Those that are to be brought to the bucket. */
  readonly changed: readonly WalkedFile[];
}

async function takeFiles(
  parts: UploadParts,
  { files, changed }: Found,
  attempts: Attempts,
  signal: AbortSignal,
): Promise<void> {
  const { paths, index } = parts;
  // Writes back mapped pages: the next write to one moves the file's ctime again.
  await native.syncFileSystem(paths.mount);
  await untilOld(changed);
  for (const { path } of changed) expectUpload(index, path);
  await index.sync();
  for (let left = changed; left.length > 0;) {
    const { free, needed } = await divide(parts, left);
    await inParallel(free, FILES_AT_ONCE, (file) =>
      attempts.make(file.path, file.ctimeNs, () => takeUnlessChanging(parts, file, signal)),
    );
    // After a crash, too, copies must be known before their sources are replaced.
    await index.sync();
    left = needed;
    const [first, ...others] = needed;
    if (free.length > 0 || first === undefined) continue;
    // Files took each other's names, or the new name of one cannot be a key or is refused.
    await attempts.make(first.path, first.ctimeNs, () => fetchMoved(parts, first, files, signal));
    if (await isNeeded(parts, first)) left = others;
  }
}

/** Tells files that can be uploaded now from those whose keys are {@link isNeeded}. */
async function divide(
  parts: UploadParts,
  files: readonly WalkedFile[],
): Promise<{ free: WalkedFile[]; needed: WalkedFile[] }> {
  const [free, needed]: [WalkedFile[], WalkedFile[]] = [[], []];
  for (const file of files) ((await isNeeded(parts, file)) ? needed : free).push(file);
  return { free, needed };
}

/**
 * Whether the object at the file's path is the only copy of another file, which was there and was
 * moved before anybody had opened it. It is copied, or fetched, before it may be replaced.
 */
async function isNeeded(parts: UploadParts, { path, inode }: WalkedFile): Promise<boolean> {
  const row = parts.index.get(path);
  return row !== undefined && row.inode !== inode && (await isMoved(parts, row));
}

/**
 * Fetches the contents of the file that the object at the path of another is {@link isNeeded} for.
 */
async function fetchMoved(
  parts: UploadParts,
  file: WalkedFile,
  files: readonly WalkedFile[],
  signal: AbortSignal,
): Promise<void> {
  const inode = parts.index.get(file.path)?.inode;
  const moved = files.find((each) => each.inode === inode);
  if (moved !== undefined) await fill(parts, moved.path, signal);
  if (await isNeeded(parts, file)) {
    throw new BucketError(
      'other',
      'its object is the only copy of a file that was moved from here',
    );
  }
}

/** Has a placeholder filled. Its open occupies a thread until then, so few are opened at a time. */
async function fill(parts: UploadParts, path: string, signal: AbortSignal): Promise<void> {
  const turn = await parts.openTurn(signal);
  try {
    const fd = await openFile(parts.paths, path);
    if (fd !== undefined) await promisify(close)(fd);
  } finally {
    turn.release();
  }
}

/**
 * Removes objects whose files are gone, and those that may have been made of files gone by now.
 * @returns how many files are gone
 */
async function removeObjects(
  parts: UploadParts,
  found: ReadonlyMap<string, WalkedFile>,
  attempts: Attempts,
  signal: AbortSignal,
): Promise<number> {
  const { index, refusals } = parts;
  // A moved file whose new name the bucket refuses keeps its old object.
  const held = new Set([...refusals.paths()].map((path) => found.get(path)?.inode));
  const paths = new Set([...index.pendingPaths(), ...[...index.rows()].map(({ path }) => path)]);
  const gone = [...paths].filter(
    (path) =>
      !found.has(path) && !refusals.isResting(path, 0n) && !held.has(index.get(path)?.inode ?? 0n),
  );
  await inParallel(gone, REMOVALS_AT_ONCE, (path) =>
    attempts.make(path, 0n, () => removeObject(parts, path, signal)),
  );
  return gone.length;
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

async function takeUnlessChanging(
  parts: UploadParts,
  file: WalkedFile,
  signal: AbortSignal,
): Promise<void> {
  for (let tries = 0; ; tries += 1) {
    try {
      return await takeFile(parts, file, signal);
    } catch (error) {
      // The end of an upload in parts that is sent again finds none, when the first one has ended
      // it.
      const { failure } = explainFailure(error);
      const isSeenAnew = failure === 'changed' || failure === 'missing';
      if (tries === CHANGES_MAX || !isSeenAnew) throw error;
    }
  }
}

async function takeFile(parts: UploadParts, file: WalkedFile, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  const source = parts.index.ofInode(file.inode);
  if (source?.isPlaceholder === true && (await isPlaceholderStill(parts, source))) {
    const isWhole = source.sizeBytes === file.sizeBytes;
    if (isWhole && (await takePlaceholder(parts, file, source, signal))) return;
    await fill(parts, file.path, signal);
  }
  await uploadFile(parts, file.path, signal);
}

const isPlaceholderStill = (
  { paths }: Pick<UploadParts, 'paths'>,
  { inode }: IndexRow,
): Promise<boolean> => native.inodeHasAttribute(paths.mount, Number(inode), PLACEHOLDER_ATTRIBUTE);

/** A placeholder was moved, or its mode was changed. @returns false when it must be filled */
async function takePlaceholder(
  { paths, index, bucket }: UploadParts,
  { path }: WalkedFile,
  source: IndexRow,
  signal: AbortSignal,
): Promise<boolean> {
  if (source.path === path) {
    const now = await stampsAt(paths.contents, path);
    if (now === undefined || now === 'other' || now.inode !== source.inode) return true;
    index.set({ ...source, ...now });
    return true;
  }
  // Over an object of somebody else: filled and uploaded, which sees the conflict.
  if (!isKnownObject(index, path, await bucket.head(path, signal))) return false;
  try {
    const object = { ...source, key: source.path };
    const { etag } = await bucket.copy(object, path, `${expectUpload(index, path)}-0`, signal);
    const now = await stampsAt(paths.contents, path);
    if (now === undefined || now === 'other' || now.inode !== source.inode) return true;
    index.set({ ...source, path, etag, ...now });
    return true;
  } catch (error) {
    const { failure } = explainFailure(error);
    if (['changed', 'missing', 'unsupported', 'other'].includes(failure)) return false;
    throw error;
  }
}

/** Waits once for all of them; see {@link TICK_MS}. */
async function untilOld(files: readonly WalkedFile[]): Promise<void> {
  const newestMs = files.reduce((max, file) => Math.max(max, Number(file.ctimeNs / 1_000_000n)), 0);
  const leftMs = newestMs + TICK_MS - Date.now();
  if (leftMs > 0) await sleep(Math.min(leftMs + 1, TICK_MS));
}

/** The file is gone, so its object goes, unless somebody else has changed that. */
async function removeObject(
  { paths, index, bucket }: UploadParts,
  path: string,
  signal: AbortSignal,
): Promise<void> {
  const now = await stampsAt(paths.contents, path);
  if (now !== undefined && now !== 'other') return; // The file was created anew meanwhile.
  const row = index.get(path);
  if (row !== undefined && (await isMoved({ paths, index }, row))) return;
  const present = await bucket.head(path, signal);
  if (present !== undefined && isKnownObject(index, path, present)) {
    await bucket.remove(present, signal);
  }
  index.delete(path);
}

/**
 * Whether the file is a placeholder still, under another name: the bucket has the only copy of its
 * contents. A walk can miss a file that is moved during it.
 */
async function isMoved(
  parts: Pick<UploadParts, 'paths' | 'index'>,
  row: IndexRow,
): Promise<boolean> {
  return parts.index.ofInode(row.inode) === row && (await isPlaceholderStill(parts, row));
}
