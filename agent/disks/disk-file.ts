import { type BigIntStats, constants } from 'node:fs';
import { AppError, errnoOf } from '../../shared/errors.ts';
import { closeReadFile, openBeneath, statFile } from './disk-calls.ts';

/** A regular file on a disk, open for reading. */
export interface DiskFile extends AsyncDisposable {
  readonly fd: number;
  readonly stats: BigIntStats;
}

function toAppError(error: unknown): unknown {
  switch (errnoOf(error)) {
    case 'ENOENT':
    case 'ENOTDIR':
    case 'ENAMETOOLONG':
    // The path leads out of the disk, where callers have no files.
    case 'EXDEV':
    case 'ELOOP': {
      return new AppError('not_found', 'there is no such file on the disk');
    }
    case 'EISDIR': {
      return new AppError('bad_request', 'the key names a directory, not a file');
    }
    case 'ENXIO': {
      return new AppError('bad_request', 'the key does not name a regular file');
    }
    case 'EIO': {
      return new AppError('unavailable', 'the disk cannot be read at the moment; try again');
    }
    case 'EAGAIN': {
      return new AppError('unavailable', 'the file is locked or being moved; try again');
    }
    default: {
      return error;
    }
  }
}

/**
 * Opens a file beneath a mounted disk's root. Links are followed as long as they stay on the disk.
 * @param root where the disk is mounted
 * @param key path from the disk's root, without a leading slash
 * @throws AppError `not_found`, `bad_request` when it is not a regular file, `unavailable`
 */
export async function openDiskFile(root: string, key: string): Promise<DiskFile> {
  const fd = await openBeneath(root, key, constants.O_RDONLY).catch((error: unknown) => {
    throw toAppError(error);
  });
  try {
    const stats = await statFile(fd, { bigint: true });
    return { fd, stats, [Symbol.asyncDispose]: () => closeReadFile(fd) };
  } catch (error) {
    await closeReadFile(fd);
    throw error;
  }
}
