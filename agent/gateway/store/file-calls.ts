import { close, fchmod, fchown, fdatasync, fstatSync, fsync, ftruncate, read } from 'node:fs';
import { promisify } from 'node:util';
import type { FileIdentity } from '../../native/native.ts';

/* Node has promises for its own file objects only; descriptors of the addon need these. */
export const closeFile = promisify(close);
export const syncFile = promisify(fsync);
export const syncData = promisify(fdatasync);
export const truncateFile = promisify(ftruncate);
const changeMode = promisify(fchmod);
const changeOwner = promisify(fchown);
const readBytes = promisify(read);

export interface Owner {
  readonly uid: number;
  readonly gid: number;
}

export interface Attributes extends Owner {
  /** Permissions, four octal digits. */
  readonly mode: number;
}

export interface FileStatus extends FileIdentity, Attributes {
  readonly modifiedAt: Date;
}

/** At once: the inode of an open file is in memory, and a thread takes longer to be asked. */
export function statusOf(fd: number): FileStatus {
  const found = fstatSync(fd, { bigint: true });
  return {
    sizeBytes: Number(found.size),
    inode: found.ino,
    mtimeNs: found.mtimeNs,
    ctimeNs: found.ctimeNs,
    mode: Number(found.mode) & 0o7777,
    uid: Number(found.uid),
    gid: Number(found.gid),
    modifiedAt: found.mtime,
  };
}

export async function changeAttributes(fd: number, attributes: Attributes): Promise<void> {
  await changeOwner(fd, attributes.uid, attributes.gid);
  await changeMode(fd, attributes.mode); // Second: a new owner takes the set-user-id bits away.
}

/** @returns how many bytes were read; 0 at the end of the file */
export async function readAt(fd: number, into: Buffer, offset: number): Promise<number> {
  return (await readBytes(fd, into, 0, into.length, offset)).bytesRead;
}
