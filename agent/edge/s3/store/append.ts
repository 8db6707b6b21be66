import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { EDGE_LIMITS } from '../../limits.ts';
import {
  addToMd5,
  changeMode,
  closeFile,
  digestMd5,
  getAttribute,
  newMd5,
  openBeneath,
  readBytes,
  setAttribute,
  syncFile,
  writeChunks,
} from '../../../disks/disk-calls.ts';
import type { DiskLayout } from '../../../disks/disk-layout.ts';
import { toItsEnd } from '../../../disks/disk-threads.ts';
import { declareAppend, undoAppend } from './append-intent.ts';
import { type FileStatus, SET_ID_BITS, stampModified, statusOf } from './file-calls.ts';
import type { ObjectPath } from './keys.ts';
import { describe, type ObjectInfo } from './object-info.ts';
import { decodeRecord, encodeRecord, etagOf, RECORD_ATTRIBUTE, UNHASHED } from './object-record.ts';
import { isAbsent } from './store-errors.ts';
import { MiB } from '../../../../shared/units.ts';

/**
 * The MD5 state of an object that was appended to, kept with a record of the file, so that the next
 * append need not read the existing content.
 */
const STATE_ATTRIBUTE = 'trusted.berth.append';
const READ_BYTES = MiB;

/**
 * Appends to a file in place; commands that have it open see it grow. If the host crashes
 * meanwhile, the file has all of the bytes or none when the disk is attached again. The caller
 * holds the lock of the key.
 * @returns undefined when there is no file to append to
 */
export async function appendToFile(
  { contents, uploads }: DiskLayout,
  target: ObjectPath,
  body: Buffer,
): Promise<ObjectInfo | undefined> {
  let fd: number;
  try {
    fd = await openBeneath(contents, target.path, constants.O_RDWR | constants.O_APPEND);
  } catch (error) {
    if (isAbsent(error)) return undefined;
    throw error;
  }
  try {
    await dropSetIdBits(fd);
    await using _intent = await declareAppend(uploads, fd, body.length);
    await appendAndRecord(fd, body);
    await syncFile(fd);
    return await describe(fd, target);
  } finally {
    await closeFile(fd);
  }
}

/** The kernel does this to files that others than root write to (inode(7)). */
async function dropSetIdBits(fd: number): Promise<void> {
  const { mode } = statusOf(fd);
  if ((mode & SET_ID_BITS) !== 0) await changeMode(fd, mode & ~SET_ID_BITS);
}

async function appendAndRecord(fd: number, body: Buffer): Promise<void> {
  const before = statusOf(fd);
  const record = decodeRecord(await getAttribute(fd, RECORD_ATTRIBUTE), before);
  const md5 = (await keptMd5(fd, before)) ?? (await md5Of(fd, before));
  try {
    await writeChunks(fd, 0, [body]); // The offset is ignored with O_APPEND.
  } catch (error) {
    await toItsEnd(() => undoAppend(fd, before));
    throw error;
  }
  if (md5 !== undefined) await addToMd5(md5, [body]);
  // A command appended to the file at the same time, so the MD5 does not match the file.
  if (statusOf(fd).sizeBytes !== before.sizeBytes + body.length) return;
  stampModified(fd);
  const after = statusOf(fd);
  const etag =
    md5 === undefined
      ? { md5: chain(etagOf(record, before), body), partCount: UNHASHED }
      : { md5: digestMd5(md5), partCount: 0 };
  const { contentType, headers = {} } = record ?? {};
  const bytes = encodeRecord({ ...etag, contentType, headers }, after);
  if (md5 !== undefined) {
    const kept = encodeRecord({ ...etag, contentType: undefined, headers: {} }, after);
    await setAttribute(fd, STATE_ATTRIBUTE, Buffer.concat([kept, md5]));
  }
  await setAttribute(fd, RECORD_ATTRIBUTE, bytes);
}

/** A value that changes whenever the object does, without reading the object. */
const chain = (etag: string, body: Buffer): Buffer =>
  createHash('md5').update(`${etag}\n`).update(body).digest();

async function keptMd5(fd: number, status: FileStatus): Promise<Buffer | undefined> {
  const bytes = await getAttribute(fd, STATE_ATTRIBUTE);
  const state = newMd5();
  const headBytes = (bytes?.length ?? 0) - state.length;
  if (decodeRecord(bytes?.subarray(0, headBytes), status) === undefined) return undefined;
  bytes?.copy(state, 0, headBytes);
  return state;
}

/** @returns undefined when the file is too long to be read for an append */
async function md5Of(fd: number, { sizeBytes }: FileStatus): Promise<Buffer | undefined> {
  if (sizeBytes > EDGE_LIMITS.appendHashedBytesMax) return undefined;
  const md5 = newMd5();
  const buffer = Buffer.alloc(Math.min(READ_BYTES, sizeBytes));
  for (let offset = 0; offset < sizeBytes;) {
    const { bytesRead } = await readBytes(fd, buffer, 0, buffer.length, offset);
    if (bytesRead === 0) break;
    await addToMd5(md5, [buffer.subarray(0, Math.min(bytesRead, sizeBytes - offset))]);
    offset += bytesRead;
  }
  return md5;
}
