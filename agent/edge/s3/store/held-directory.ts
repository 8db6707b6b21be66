import { constants } from 'node:fs';
import { posix } from 'node:path';
import { errnoOf, ignoring } from '../../../../shared/errors.ts';
import { closeFile, mkdir, openBeneath, syncFile } from '../../../disks/disk-calls.ts';
import { S3Error } from '../protocol/errors.ts';
import { type Attributes, changeAttributes, type Owner } from './file-calls.ts';
import { isAbsent } from './store-errors.ts';

export const DIRECTORY_MODE_DEFAULT = 0o755;

/** A directory held open, so that it stays the same one even if it is renamed. */
export interface HeldDirectory extends AsyncDisposable {
  readonly fd: number;
  /** The path of a name in it, for calls that do not follow a final link. */
  at(name: string): string;
}

/**
 * Opens a directory beneath the root; links that lead nowhere outside it are followed.
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
 * Opens a directory and durably creates the missing directories on its path.
 * @param owner of the directories that are created
 * @throws S3Error `OperationAborted` when a part of the path is not a directory
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
    // A dangling link: its name is taken, so no directory can be created there.
    throw isAbsent(error) ? blocked() : error;
  }
}

const blocked = (): S3Error =>
  new S3Error('OperationAborted', 'A part of the key is not a directory on the disk.');

/** Creates a directory unless the name is taken; durable when it returns. */
export async function makeDirectoryIn(
  parent: HeldDirectory,
  name: string,
  attributes: Attributes,
): Promise<void> {
  const path = parent.at(name);
  try {
    await mkdir(path, { mode: 0o700 });
  } catch (error) {
    ignoring('EEXIST')(error);
    return;
  }
  await using made = await holdDirectory(`/proc/self/fd/${parent.fd}`, name, constants.O_NOFOLLOW);
  await changeAttributes(made.fd, attributes);
  await syncFile(made.fd);
  await syncFile(parent.fd);
}
