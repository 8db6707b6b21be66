import { join } from 'node:path';
import { ignoring } from '../../../../shared/errors.ts';
import { EDGE_LIMITS } from '../../limits.ts';
import { readdir, rm, stat } from '../../../disks/disk-calls.ts';
import type { DiskLayout } from '../../../disks/disk-layout.ts';
import { finishAppend, isAppendName } from './append-intent.ts';
import { finishUpload, removeUpload } from './upload-files.ts';
import { initiatedAtOf, isDoneName, isStagedName, isUploadId, uploadIdOf } from './upload-names.ts';

/** How long one clean-up may take; the next one continues. */
const EXPIRE_FOR_MS = 1_000;

/**
 * Cleans up when a disk is attached: removes what a crash left unfinished, undoes appends,
 * completes uploads whose object appeared just before the crash, and removes what has expired.
 */
export async function clearUploads({ uploads }: DiskLayout): Promise<void> {
  for (const name of await readdir(uploads)) {
    if (isStagedName(name)) await rm(join(uploads, name), { recursive: true, force: true });
    else if (isUploadId(name)) await finishUpload(uploads, name);
    else if (isAppendName(name)) await finishAppend(uploads, name);
  }
  await expireUploads(uploads);
}

/**
 * Removes multipart uploads older than 7 days, and the answers of completed ones after an hour.
 * @returns how many uploads are left
 */
export async function expireUploads(uploads: string): Promise<number> {
  const until = performance.now() + EXPIRE_FOR_MS;
  let left = 0;
  for (const name of await readdir(uploads)) {
    if (isUploadId(name)) left += 1;
    if (performance.now() > until || !(await isExpired(uploads, name))) continue;
    if (isUploadId(name)) left -= 1;
    await removeUpload(uploads, name);
  }
  return left;
}

/**
 * Whether the name alone, which says when its upload began, leaves it possible that
 * {@link expireUploads} removes the file: an answer is as old as its upload at most.
 */
export function mayBeExpired(name: string): boolean {
  const isDone = isDoneName(name);
  const uploadId = isDone ? uploadIdOf(name) : name;
  if (!isUploadId(uploadId)) return false;
  const ageMsMax = isDone ? EDGE_LIMITS.uploadAnswerAgeMsMax : EDGE_LIMITS.uploadAgeMsMax;
  return Date.now() - initiatedAtOf(uploadId).getTime() > ageMsMax;
}

async function isExpired(uploads: string, name: string): Promise<boolean> {
  if (isUploadId(name))
    return Date.now() - initiatedAtOf(name).getTime() > EDGE_LIMITS.uploadAgeMsMax;
  if (!isDoneName(name)) return false;
  const found = await stat(join(uploads, name)).catch(ignoring('ENOENT'));
  return found !== undefined && Date.now() - found.mtimeMs > EDGE_LIMITS.uploadAnswerAgeMsMax;
}
