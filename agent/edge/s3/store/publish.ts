import type { Stats } from 'node:fs';
import { ignoring } from '../../../../shared/errors.ts';
import { lstat, rename, setAttribute, syncFile } from '../../../disks/disk-calls.ts';
import { S3Error } from '../protocol/errors.ts';
import { changeAttributes, SET_ID_BITS, stampModified, statusOf } from './file-calls.ts';
import { holdMadeDirectory } from './held-directory.ts';
import type { ObjectPath } from './keys.ts';
import {
  describe,
  findObject,
  newRecord,
  type ObjectInfo,
  type Precondition,
  type WriteAttributes,
} from './object-info.ts';
import { encodeRecord, etagOf, type ObjectRecord, RECORD_ATTRIBUTE } from './object-record.ts';
import { storePartTable } from './part-table.ts';
import type { StoredPart } from './upload-files.ts';

const FILE_MODE_DEFAULT = 0o644;

export interface Publication {
  /** A complete file in the disk's `uploads`, which is renamed. */
  readonly staged: { readonly fd: number; readonly path: string };
  readonly digests: Pick<ObjectRecord, 'md5' | 'partCount' | 'checksum'>;
  /** Parts of a multipart object. */
  readonly parts?: readonly StoredPart[];
  readonly attributes: WriteAttributes;
  readonly precondition?: Precondition | undefined;
  /** Called as the last step before the object appears. */
  readonly beforeRename?: (info: ObjectInfo) => Promise<void>;
}

/**
 * Makes a file the object of a key, durably and atomically: readers see the former object or this
 * one. The caller holds the lock of the key.
 * @throws S3Error `OperationAborted` when a directory is in its place or a file in a parent's, and
 *   what the precondition throws
 */
export async function publish(
  contents: string,
  target: ObjectPath,
  { staged, digests, parts, attributes, precondition, beforeRename }: Publication,
): Promise<ObjectInfo> {
  precondition?.(await findObject(contents, target));
  const { uid = 0, gid = 0 } = attributes;
  await using parent = await holdMadeDirectory(contents, target.parent, { uid, gid });
  const place = parent.at(target.name);
  const former = await lstat(place).catch(ignoring('ENOENT'));
  if (former?.isDirectory() === true) {
    throw new S3Error('OperationAborted', 'The key names a directory on the disk.');
  }
  await changeAttributes(staged.fd, mergeAttributes(attributes, former));
  const record = newRecord(digests, attributes, target);
  stampModified(staged.fd);
  const bytes = encodeRecord(record, statusOf(staged.fd));
  await setAttribute(staged.fd, RECORD_ATTRIBUTE, bytes);
  if (parts !== undefined)
    await storePartTable(staged.fd, etagOf(record, statusOf(staged.fd)), parts);
  await syncFile(staged.fd);
  const info = await describe(staged.fd, target);
  await beforeRename?.(info);
  await rename(staged.path, place);
  await syncFile(parent.fd);
  return info;
}

/**
 * An object that replaces another keeps the owner and mode that the request does not set, but for
 * the set-user-id and set-group-id bits: they were given to the former contents.
 */
function mergeAttributes(
  { mode, uid, gid }: WriteAttributes,
  former: Stats | undefined,
): { mode: number; uid: number; gid: number } {
  const kept = former?.isFile() === true ? former : undefined;
  return {
    mode: mode ?? (kept === undefined ? FILE_MODE_DEFAULT : kept.mode & ~SET_ID_BITS & 0o7777),
    uid: uid ?? kept?.uid ?? 0,
    gid: gid ?? kept?.gid ?? 0,
  };
}
