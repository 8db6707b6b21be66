import { openWithAttribute } from '../../../disks/disk-calls.ts';
import { dateOf, type FileStatus } from './file-calls.ts';

/** `struct object_head` of object.c, field by field. */
const AT = {
  ...{ inode: 0, sizeBytes: 8, mtimeNs: 16, ctimeNs: 24 },
  ...{ mode: 32, uid: 36, gid: 40, fd: 44, attributeLength: 48 },
};
const HEAD_BYTES = 56;

interface Found {
  readonly status: FileStatus;
  /** Undefined when the file does not have it. */
  readonly attribute: Buffer | undefined;
}

/** A file that was found: open, or read whole and closed again. */
export type OpenedObject =
  | (Found & { readonly fd: number })
  | (Found & { readonly content: Buffer });

/**
 * Opens a file beneath a directory, and reads its attribute and its status, in one turn on a disk
 * thread.
 * @param contentMax reads the content too, and closes the file, when it has no more bytes than this
 *   and its status shows any later change
 */
export async function openWithStatus(
  ...request: Parameters<typeof openWithAttribute>
): Promise<OpenedObject> {
  const bytes = await openWithAttribute(...request);
  const attributeLength = bytes.readInt32LE(AT.attributeLength);
  const end = HEAD_BYTES + Math.max(attributeLength, 0);
  const attribute = attributeLength < 0 ? undefined : bytes.subarray(HEAD_BYTES, end);
  const status = readStatus(bytes);
  const fd = bytes.readInt32LE(AT.fd);
  return fd < 0 ? { status, attribute, content: bytes.subarray(end) } : { status, attribute, fd };
}

function readStatus(head: Buffer): FileStatus {
  const mtimeNs = head.readBigInt64LE(AT.mtimeNs);
  return {
    sizeBytes: Number(head.readBigInt64LE(AT.sizeBytes)),
    inode: head.readBigUInt64LE(AT.inode),
    mtimeNs,
    ctimeNs: head.readBigInt64LE(AT.ctimeNs),
    mode: head.readUInt32LE(AT.mode) & 0o7777,
    uid: head.readUInt32LE(AT.uid),
    gid: head.readUInt32LE(AT.gid),
    modifiedAt: dateOf(mtimeNs),
  };
}
