import { constants } from 'node:fs';
import { closeReadFile, getAttribute, setAttribute } from '../../disks/disk-calls.ts';
import { holdDirectory } from './held-directory.ts';
import { EMPTY_ETAG } from './object-record.ts';
import { openWithStatus } from './opened-object.ts';
import { isAbsent } from './store-errors.ts';

/*
 * A directory is listed as a key of its own, with a slash at its end, when it was put as one. Others are
 * only parts of keys. An extended attribute with one byte says so; an empty one takes it back.
 */
const ATTRIBUTE = 'trusted.berth.key';

async function setMark(contents: string, path: string, value: Buffer): Promise<void> {
  await using directory = await holdDirectory(contents, path);
  if (((await getAttribute(directory.fd, ATTRIBUTE)) ?? '').length === value.length) return;
  await setAttribute(directory.fd, ATTRIBUTE, value);
}

/** Has listings name a directory as a key. */
export async function markAsKey(contents: string, path: string): Promise<void> {
  try {
    await setMark(contents, path, Buffer.of(1));
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
    const opened = await openWithStatus(contents, key.slice(0, -1), flags, ATTRIBUTE, 0);
    if ('fd' in opened) await closeReadFile(opened.fd);
    if ((opened.attribute ?? '').length === 0) return undefined;
    return { key, sizeBytes: 0, etag: EMPTY_ETAG, modifiedAt: opened.status.modifiedAt };
  } catch (error) {
    if (isAbsent(error)) return undefined;
    throw error;
  }
}
