import { constants } from 'node:fs';
import { closeReadFile, getAttribute, setAttribute, syncFile } from '../../../disks/disk-calls.ts';
import type { FileIdentity } from '../../../native/native.ts';
import { holdDirectory } from './held-directory.ts';
import { decodeRecord, EMPTY_ETAG, encodeRecord, type ObjectRecord } from './object-record.ts';
import { openWithStatus } from './opened-object.ts';
import { isAbsent } from './store-errors.ts';

/*
 * A directory is listed as a key of its own, with a slash at its end, when it was put as one.
 * Others are only parts of keys. An extended attribute says so: the record of an empty object
 * (object-record.ts), or one byte from an earlier version. An empty attribute takes it back.
 */
export const KEY_ATTRIBUTE = 'trusted.berth.key';

/** Stands for the directory in its record, which holds whatever becomes of the names in it. */
const ANY_DIRECTORY: FileIdentity = { inode: 0n, sizeBytes: 0, mtimeNs: 0n, ctimeNs: 0n };

/**
 * The record of a directory that was put as a key; undefined without one, as in an earlier mark.
 */
export const decodeKey = (attribute: Buffer | undefined): ObjectRecord | undefined =>
  decodeRecord(attribute, ANY_DIRECTORY);

/** Durable when it returns. */
async function setMark(contents: string, path: string, value: Buffer): Promise<void> {
  await using directory = await holdDirectory(contents, path);
  const former = (await getAttribute(directory.fd, KEY_ATTRIBUTE)) ?? Buffer.alloc(0);
  if (former.equals(value)) return;
  await setAttribute(directory.fd, KEY_ATTRIBUTE, value);
  await syncFile(directory.fd);
}

/** Has listings name a directory as a key, and keeps its record. */
export async function markAsKey(
  contents: string,
  path: string,
  record: ObjectRecord,
): Promise<void> {
  try {
    await setMark(contents, path, encodeRecord(record, ANY_DIRECTORY));
  } catch (error) {
    if (!isAbsent(error)) throw error; // Not a directory: the caller finds out.
  }
}

/** Takes the key of a directory away; the directory stays, and may be missing. */
export async function unmarkAsKey(contents: string, path: string): Promise<void> {
  try {
    await setMark(contents, path, Buffer.alloc(0));
  } catch (error) {
    if (!isAbsent(error)) throw error;
  }
}

/** The entry of a listing for a directory with a trailing slash, when it was put as a key. */
export async function findDirectoryKey(contents: string, key: string) {
  const flags = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW;
  try {
    const opened = await openWithStatus(contents, key.slice(0, -1), flags, KEY_ATTRIBUTE, 0);
    if ('fd' in opened) await closeReadFile(opened.fd);
    const { attribute, status } = opened;
    if ((attribute ?? '').length === 0) return undefined;
    const checksum = decodeKey(attribute)?.checksum;
    return { key, sizeBytes: 0, etag: EMPTY_ETAG, modifiedAt: status.modifiedAt, checksum };
  } catch (error) {
    if (isAbsent(error)) return undefined;
    throw error;
  }
}
