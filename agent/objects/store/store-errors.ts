import { errnoOf } from '../../../shared/errors.ts';
import { S3Error } from '../protocol/errors.ts';

/** What errno names mean where nothing more is known; everything else is a defect of ours. */
const answers: Readonly<Record<string, () => S3Error>> = {
  ENOSPC: () => new S3Error('QuotaExceeded'),
  EDQUOT: () => new S3Error('QuotaExceeded'),
  EFBIG: () => new S3Error('EntityTooLarge'),
  ENAMETOOLONG: () => new S3Error('KeyTooLongError'),
  // The file system is broken, or the disk was given up just now.
  EROFS: () => new S3Error('ServiceUnavailable'),
  EIO: () => new S3Error('ServiceUnavailable'),
  EUCLEAN: () => new S3Error('ServiceUnavailable'),
  ESTALE: () => new S3Error('ServiceUnavailable'),
  // A process holds a lease on the file, or moves directories all the time.
  EAGAIN: () => new S3Error('ServiceUnavailable'),
  EMFILE: () => new S3Error('SlowDown'),
  ENFILE: () => new S3Error('SlowDown'),
  ENOMEM: () => new S3Error('SlowDown'),
  // A command changes the same place at the same time.
  ENOENT: () => new S3Error('OperationAborted'),
  ENOTDIR: () => new S3Error('OperationAborted'),
  EISDIR: () => new S3Error('OperationAborted'),
  EEXIST: () => new S3Error('OperationAborted'),
  ENOTEMPTY: () => new S3Error('OperationAborted'),
  ELOOP: () => new S3Error('OperationAborted'),
  EXDEV: () => new S3Error('OperationAborted'),
  ENXIO: () => new S3Error('OperationAborted'),
  EMLINK: () => new S3Error('OperationAborted'),
  // A file that a command made immutable, chattr(1), or that is a program in use.
  EPERM: () => new S3Error('OperationAborted'),
  EACCES: () => new S3Error('OperationAborted'),
  ETXTBSY: () => new S3Error('OperationAborted'),
};

/** Runs work on a disk; a failure of the system becomes what the caller is told. */
export async function asS3<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw answers[errnoOf(error) ?? '']?.() ?? error;
  }
}

/** Nothing is there that could be an object. */
const absent = new Set(['ENOENT', 'ENOTDIR', 'EISDIR', 'ELOOP', 'EXDEV', 'ENXIO', 'ENAMETOOLONG']);

export const isAbsent = (error: unknown): boolean => absent.has(errnoOf(error) ?? '');

/** For `catch`: goes on when the system failed for one of these reasons. */
export const unless =
  (...codes: string[]) =>
  (error: unknown): void => {
    if (!codes.includes(errnoOf(error) ?? '')) throw error;
  };
