import { constants } from 'node:fs';
import { native } from '../../native/native.ts';
import {
  closeFile,
  type FileStatus,
  readAt,
  statusOf,
  syncFile,
  truncateFile,
} from './file-calls.ts';
import type { ObjectPath } from './keys.ts';
import { describe, type ObjectInfo } from './object-info.ts';
import { decodeRecord, encodeRecord, RECORD_ATTRIBUTE } from './object-record.ts';
import { isAbsent } from './store-errors.ts';

/**
 * The state of the MD5 of an object that was appended to, behind a record of the file: the next
 * append need not read what is there already.
 */
const STATE_ATTRIBUTE = 'trusted.berth.append';
const READ_BYTES = 1024 ** 2;

/**
 * Adds to the end of a file in its place; commands that have it open see it grow. When the machine
 * goes down meanwhile, a part of what was added may stay. The caller holds the lock of the key.
 * @returns undefined when there is no file to add to
 */
export async function appendToFile(
  contents: string,
  target: ObjectPath,
  body: Buffer,
): Promise<ObjectInfo | undefined> {
  let fd: number;
  try {
    fd = await native.openBeneath(contents, target.path, constants.O_RDWR | constants.O_APPEND);
  } catch (error) {
    if (isAbsent(error)) return undefined;
    throw error;
  }
  try {
    await appendAndRecord(fd, body);
    await syncFile(fd);
    return await describe(fd, target);
  } finally {
    await closeFile(fd);
  }
}

async function appendAndRecord(fd: number, body: Buffer): Promise<void> {
  const before = statusOf(fd);
  const record = decodeRecord(await native.getAttribute(fd, RECORD_ATTRIBUTE), before);
  const md5 = (await keptMd5(fd, before)) ?? (await md5Of(fd));
  try {
    await native.write(fd, 0, [body]); // O_APPEND: the offset does not count.
  } catch (error) {
    await truncateFile(fd, before.sizeBytes);
    throw error;
  }
  await native.addToMd5(md5, [body]);
  const after = statusOf(fd);
  // A command that added to the file at the same time: what the MD5 is of is not the file.
  if (after.sizeBytes !== before.sizeBytes + body.length) return;
  const etag = { md5: native.digestMd5(md5), partCount: 0 };
  const bytes = encodeRecord(
    { ...etag, contentType: record?.contentType, headers: record?.headers ?? {} },
    after,
  );
  const kept = encodeRecord({ ...etag, contentType: undefined, headers: {} }, after);
  await native.setAttribute(fd, STATE_ATTRIBUTE, Buffer.concat([kept, md5]));
  await native.setAttribute(fd, RECORD_ATTRIBUTE, bytes);
}

async function keptMd5(fd: number, status: FileStatus): Promise<Buffer | undefined> {
  const bytes = await native.getAttribute(fd, STATE_ATTRIBUTE);
  const state = native.newMd5();
  const headBytes = (bytes?.length ?? 0) - state.length;
  if (decodeRecord(bytes?.subarray(0, headBytes), status) === undefined) return undefined;
  bytes?.copy(state, 0, headBytes);
  return state;
}

async function md5Of(fd: number): Promise<Buffer> {
  const md5 = native.newMd5();
  const buffer = Buffer.alloc(READ_BYTES);
  for (let offset = 0; ;) {
    const length = await readAt(fd, buffer, offset);
    if (length === 0) return md5;
    await native.addToMd5(md5, [buffer.subarray(0, length)]);
    offset += length;
  }
}
