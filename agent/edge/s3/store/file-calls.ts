import { fstatSync, futimesSync } from 'node:fs';
import { changeMode, changeOwner } from '../../../disks/disk-calls.ts';
import type { FileIdentity } from '../../../native/native.ts';

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

/** Set-user-id and set-group-id (inode(7)). */
export const SET_ID_BITS = 0o6000;

const NS_PER_MS = 1_000_000n;

/** The moment of a file's time, as Node's own `fs.Stats` has it. */
export const dateOf = (timeNs: bigint): Date => new Date(Number(timeNs / NS_PER_MS));

/** Synchronous: the inode of an open file is in memory, and asking a thread takes longer. */
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

/**
 * Sets the modification time to now, finer than the kernel's own clock for it. A command that
 * changes the file right afterwards leaves another time, even within the same tick of that clock.
 */
export function stampModified(fd: number): void {
  const seconds = Date.now() / 1000;
  futimesSync(fd, seconds, seconds + (performance.now() % 1) / 1000);
}

export async function changeAttributes(fd: number, attributes: Attributes): Promise<void> {
  await changeOwner(fd, attributes.uid, attributes.gid);
  await changeMode(fd, attributes.mode); // After chown, which clears the set-user-id bits.
}
