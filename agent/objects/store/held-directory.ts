import { constants } from 'node:fs';
import { posix } from 'node:path';
import { errnoOf } from '../../../shared/errors.ts';
import { closeFile, mkdir, openBeneath, syncFile } from '../../disks/disk-calls.ts';
import { S3Error } from '../protocol/errors.ts';
import { type Attributes, changeAttributes, type Owner } from './file-calls.ts';
import { isAbsent, unless } from './store-errors.ts';

export const DIRECTORY_MODE_DEFAULT = 0o755;

/** A directory that stays the same one whatever is moved meanwhile. */
export interface HeldDirectory extends AsyncDisposable {
  readonly fd: number;
  /** Where one name in it is reached, by calls that do not follow a last link. */
  at(name: string): string;
}

/**
 * Opens a directory beneath the root; links that stay beneath it are followed.
 * @throws Error `ENOENT`, `ENOTDIR`, `EXDEV`, `ELOOP` when there is none
 */
export async function holdDirectory(root: string, path: string, flags = 0): Promise<HeldDirectory> {
  const fd = await openBeneath(root, path, constants.O_RDONLY | constants.O_DIRECTORY | flags);
  return {
    fd,
    at: (name) => `/proc/self/fd/${fd}/${name}`,
    [Symbol.asyncDispose]: () => closeFile(fd),
  };
}

/**
 * Opens a directory and makes what is missing on the way, durably.
 * @param owner of the directories that are made
 * @throws S3Error `OperationAborted` when something else is in the way
 */
export async function holdMadeDirectory(
  root: string,
  path: string,
  owner: Owner,
): Promise<HeldDirectory> {
  try {
    return await holdDirectory(root, path);
  } catch (error) {
    if (!isAbsent(error)) throw error;
    if (path === '' || errnoOf(error) !== 'ENOENT') throw blocked();
  }
  const parentPath = posix.dirname(path) === '.' ? '' : posix.dirname(path);
  await using parent = await holdMadeDirectory(root, parentPath, owner);
  await makeDirectoryIn(parent, posix.basename(path), { ...owner, mode: DIRECTORY_MODE_DEFAULT });
  try {
    return await holdDirectory(root, path);
  } catch (error) {
    // A link that leads nowhere: it is there, and so nothing can be made in its place.
    throw isAbsent(error) ? blocked() : error;
  }
}

const blocked = (): S3Error =>
  new S3Error('OperationAborted', 'A part of the key is not a directory on the disk.');

/** Makes a directory unless something has the name; durable when it returns. */
export async function makeDirectoryIn(
  parent: HeldDirectory,
  name: string,
  attributes: Attributes,
): Promise<void> {
  const path = parent.at(name);
  try {
    await mkdir(path, { mode: 0o700 });
  } catch (error) {
    unless('EEXIST')(error);
    return;
  }
  await using made = await holdDirectory(`/proc/self/fd/${parent.fd}`, name, constants.O_NOFOLLOW);
  await changeAttributes(made.fd, attributes);
  await syncFile(made.fd);
  await syncFile(parent.fd);
}
