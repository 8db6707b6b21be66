import { closeSync, constants } from 'node:fs';
import { link, rename, rmdir, unlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { errnoOf } from '../../../shared/errors.ts';
import { openBeneath } from '../disk-calls.ts';
import { native } from '../../native/native.ts';
import { atPath, makeParents } from './beneath.ts';
import type { Bucket, BucketObject } from './bucket.ts';
import { type DiskIndex, type IndexRow, isAbsent } from './disk-index.ts';
import { whyNoPath } from './key-names.ts';
import { ListingBounds } from './listing-bounds.ts';
import {
  type BucketPaths,
  fileStats,
  isSame,
  newName,
  putPlaceholder,
  stampsAt,
  stampsOf,
} from './placeholders.ts';
import { PathProblems } from './problems.ts';
import { inParallel } from './in-parallel.ts';

export interface RefreshParts {
  readonly paths: BucketPaths;
  readonly index: DiskIndex;
  readonly bucket: Bucket;
  /** Works on a file unless somebody waits for it to be filled. @returns whether it did */
  readonly ifFree: (inode: bigint, work: () => Promise<void>) => Promise<boolean>;
}

const FILES_AT_ONCE = 8;
const OTHER_KIND = 'a folder and an object of this name exclude each other as files';

/**
 * Brings what others have changed in the bucket to the disk. Files that were changed on the disk
 * since they were last the same as their objects are left to the next upload, which sees the
 * conflict; those that somebody waits for are left to the next refresh, since what is written to
 * them counts.
 * @throws BucketError
 */
export async function refresh(parts: RefreshParts, signal: AbortSignal): Promise<PathProblems> {
  const { bucket, index } = parts;
  const problems = new PathProblems();
  const listed = new Set<string>();
  const bounds = new ListingBounds();
  for await (const page of bucket.list(signal)) {
    bounds.take(page);
    const files = page.filter((object) => isFile(object, problems));
    for (const { key } of files) listed.add(key);
    await inParallel(files, FILES_AT_ONCE, async (object) => {
      const isHidden = index.get(object.key) === undefined && isBelowFile(object.key, listed);
      if (isHidden) problems.note(object.key, OTHER_KIND);
      else await takeObject(parts, object, problems);
    });
    await index.sync();
  }
  const gone = [...index.rows()].filter(({ path }) => !listed.has(path));
  await inParallel(gone, FILES_AT_ONCE, async ({ path, inode }) => {
    await parts.ifFree(inode, () => dropFile(parts, path));
  });
  await index.sync();
  return problems;
}

/**
 * Whether a folder of the key is an object as well. Listings are sorted, so that one came before.
 */
function isBelowFile(key: string, listed: ReadonlySet<string>): boolean {
  for (let slash = key.indexOf('/'); slash !== -1; slash = key.indexOf('/', slash + 1)) {
    if (listed.has(key.slice(0, slash))) return true;
  }
  return false;
}

function isFile({ key, sizeBytes }: BucketObject, problems: PathProblems): boolean {
  if (key === '' || (key.endsWith('/') && sizeBytes === 0)) return false; // Marks a folder.
  const reason = whyNoPath(key);
  if (reason !== undefined) problems.note(key, reason);
  return reason === undefined;
}

async function takeObject(
  parts: RefreshParts,
  object: BucketObject,
  problems: PathProblems,
): Promise<void> {
  const { index, ifFree } = parts;
  const row = index.get(object.key);
  if (row?.etag === object.etag) return;
  // The object may be an upload of ours whose file is gone by now: the next upload finds out.
  if (index.pendingMark(object.key) !== undefined) return;
  try {
    if (row === undefined) await addObject(parts, object, problems);
    else await ifFree(row.inode, () => replaceFile(parts, object, problems));
  } catch (error) {
    // Somebody made a file or directory there meanwhile, or a file is where a directory should be.
    if (!['EEXIST', 'ENOTDIR', 'ENOENT', 'EISDIR'].includes(errnoOf(error) ?? '')) throw error;
    if (errnoOf(error) !== 'ENOENT') problems.note(object.key, OTHER_KIND);
  }
}

async function addObject(
  { paths, index }: RefreshParts,
  object: BucketObject,
  problems: PathProblems,
): Promise<void> {
  const now = await stampsAt(paths.contents, object.key);
  if (now === 'other') problems.note(object.key, OTHER_KIND);
  if (now !== undefined) return;
  await makeParents(paths.contents, object.key);
  await putPlaceholder(paths, index, object, { isNew: true });
}

async function replaceFile(
  parts: RefreshParts,
  object: BucketObject,
  problems: PathProblems,
): Promise<void> {
  const { paths, index } = parts;
  const row = index.get(object.key);
  const now = await stampsAt(paths.contents, object.key);
  if (now === 'other') problems.note(object.key, OTHER_KIND);
  else if (now !== undefined && row !== undefined && isSame(row, now)) {
    await setAside(parts, row);
    await putPlaceholder(paths, index, object, { isNew: false });
  }
}

/** The object is gone: so is its file, unless it was changed here. */
async function dropFile(parts: RefreshParts, path: string): Promise<void> {
  const { paths, index } = parts;
  const row = index.get(path);
  if (row === undefined) return;
  const now = await stampsAt(paths.contents, row.path);
  if (now === undefined || now === 'other' || !isSame(row, now)) {
    if (now !== undefined) index.delete(row.path); // Uploaded anew if it is a file.
    return;
  }
  await setAside(parts, row);
  index.delete(row.path);
  await atPath(paths.contents, row.path, unlink).catch(unlessAbsent);
  for (let parent = dirname(row.path); parent !== '.'; parent = dirname(parent)) {
    const isRemoved = await atPath(paths.contents, parent, rmdir).then(
      () => true,
      () => false,
    );
    if (!isRemoved) return;
  }
}

/**
 * Keeps a file that may be open: what is still written to it is found by {@link recoverReplaced}.
 */
async function setAside({ paths }: RefreshParts, row: IndexRow): Promise<void> {
  if (row.isPlaceholder) return;
  const name = `${row.mtimeNs}-${row.sizeBytes}-${newName()}`;
  const target = join(paths.replaced, name);
  await atPath(paths.contents, row.path, (path) => link(path, target)).catch(unlessAbsent);
}

function unlessAbsent(error: unknown): void {
  if (!isAbsent(error)) throw error;
}

/**
 * Looks at the files that {@link refresh} has replaced: what was written to one afterwards, by
 * somebody who had it open, becomes a file of the disk again. The others are removed once nobody
 * has them open.
 * @param names of `paths.replaced`
 * @returns names of the files that came back, from the disk's root
 */
export async function recoverReplaced(
  paths: BucketPaths,
  names: readonly string[],
): Promise<string[]> {
  const recovered: string[] = [];
  await inParallel(names, FILES_AT_ONCE, async (name) => {
    const found = await recoverFile(paths, name);
    if (found !== undefined) recovered.push(found);
  });
  return recovered;
}

/** @returns the name under which the file came back, if it did */
async function recoverFile(paths: BucketPaths, name: string): Promise<string | undefined> {
  const path = join(paths.replaced, name);
  const [mtimeNs, sizeBytes] = name.split('-');
  const fd = await openBeneath(paths.replaced, name, constants.O_RDONLY);
  try {
    // Asked before its stamps are read: whoever has it open may write to it until then.
    const isOpen = await native.isOpenElsewhere(fd);
    const now = stampsOf(await fileStats(fd));
    if (String(now.mtimeNs) !== mtimeNs || String(now.sizeBytes) !== sizeBytes) {
      const found = `recovered-${name}`;
      await rename(path, join(paths.contents, found));
      return found;
    }
    if (!isOpen) await unlink(path);
    return undefined;
  } finally {
    closeSync(fd);
  }
}
