import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import {
  closeFile,
  getAttribute,
  link,
  lstat,
  openFile,
  readLink,
  rm,
  setAttribute,
  syncFile,
  truncateFile,
} from '../../../disks/disk-calls.ts';
import { ignoring } from '../../../../shared/errors.ts';
import { toItsEnd } from '../../../disks/disk-threads.ts';
import { S3Error } from '../protocol/errors.ts';
import { type FileStatus, statusOf } from './file-calls.ts';
import { decodeRecord, encodeRecord, RECORD_ATTRIBUTE } from './object-record.ts';

/*
 * While a file is appended to, `uploads` has a second link to it, named for what it was: whatever
 * becomes of its name, the unfinished append of an agent that died is found and undone.
 */
const INTENT =
  /^append-[0-9a-f-]{36}-(?<size>\d{1,16})-(?<sizeAfter>\d{1,16})-(?<mtimeNs>-?\d{1,20})$/u;
const TRIES = 5;

export const isAppendName = (name: string): boolean => INTENT.test(name);

/**
 * Notes that a file is about to grow, until the returned intent is disposed of.
 * @throws S3Error `OperationAborted` when commands keep moving or removing the file
 */
export async function declareAppend(
  uploads: string,
  fd: number,
  lengthBytes: number,
): Promise<AsyncDisposable> {
  const { sizeBytes, mtimeNs } = statusOf(fd);
  const name = ['append', randomUUID(), sizeBytes, sizeBytes + lengthBytes, mtimeNs].join('-');
  const path = join(uploads, name);
  const remove = (): Promise<void> => toItsEnd(() => rm(path, { force: true }));
  for (let tries = 0; tries < TRIES; tries += 1) {
    if (await linkTo(fd, path)) return { [Symbol.asyncDispose]: remove };
    await remove();
  }
  throw new S3Error('OperationAborted', 'A command keeps replacing the file.');
}

/** Links an open file; false when the file has lost its name meanwhile. */
async function linkTo(fd: number, path: string): Promise<boolean> {
  const place = await readLink(`/proc/self/fd/${fd}`);
  try {
    await link(place, path);
  } catch (error) {
    ignoring('ENOENT', 'ENOTDIR')(error);
    return false;
  }
  return (await lstat(path, { bigint: true })).ino === statusOf(fd).inode;
}

/** Cuts a file to what it was, with its ETag and metadata; durable when it returns. */
export async function undoAppend(
  fd: number,
  before: Pick<FileStatus, 'sizeBytes' | 'mtimeNs'>,
): Promise<void> {
  const former = { ...statusOf(fd), ...before };
  await truncateFile(fd, before.sizeBytes);
  const record = decodeRecord(await getAttribute(fd, RECORD_ATTRIBUTE), former);
  if (record !== undefined) {
    await setAttribute(fd, RECORD_ATTRIBUTE, encodeRecord(record, statusOf(fd)));
  }
  await syncFile(fd);
}

/** Undoes the append of an agent that died, unless it had got as far as the object's record. */
export async function finishAppend(uploads: string, name: string): Promise<void> {
  const { size, sizeAfter, mtimeNs } = INTENT.exec(name)?.groups ?? {};
  const path = join(uploads, name);
  const fd = await openFile(path, 'r+');
  try {
    const status = statusOf(fd);
    const isRecorded = decodeRecord(await getAttribute(fd, RECORD_ATTRIBUTE), status) !== undefined;
    const before = { sizeBytes: Number(size), mtimeNs: BigInt(mtimeNs ?? 0) };
    const hasGrown = status.sizeBytes > before.sizeBytes && status.sizeBytes <= Number(sizeAfter);
    if (hasGrown && !isRecorded) await undoAppend(fd, before);
  } finally {
    await closeFile(fd);
  }
  await rm(path, { force: true });
}
