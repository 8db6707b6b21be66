import { errnoOf } from '../../../../shared/errors.ts';
import { S3Error } from '../protocol/errors.ts';

/** The error for each errno that a disk or caller can cause; any other is a bug. */
const answers: Readonly<Record<string, () => S3Error>> = {
  ENOSPC: () => new S3Error('QuotaExceeded'),
  EDQUOT: () => new S3Error('QuotaExceeded'),
  EFBIG: () => new S3Error('EntityTooLarge'),
  ENAMETOOLONG: () => new S3Error('KeyTooLongError'),
  // The file system is damaged or shut out of its cluster, or the disk was just given up.
  EROFS: () => new S3Error('ServiceUnavailable'),
  EIO: () => new S3Error('ServiceUnavailable'),
  EUCLEAN: () => new S3Error('ServiceUnavailable'),
  ESTALE: () => new S3Error('ServiceUnavailable'),
  ESHUTDOWN: () => new S3Error('ServiceUnavailable'),
  ENOTCONN: () => new S3Error('ServiceUnavailable'),
  // A process holds a lease on the file, or keeps moving directories.
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
  // A command made the file immutable (chattr(1)), or it is a running program.
  EPERM: () => new S3Error('OperationAborted'),
  EACCES: () => new S3Error('OperationAborted'),
  ETXTBSY: () => new S3Error('OperationAborted'),
};

/** Runs work on a disk and turns system errors into errors for the caller. */
export async function asS3<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw answers[errnoOf(error) ?? '']?.() ?? error;
  }
}

/** Whether the error means that there is no object. */
const absent = new Set(['ENOENT', 'ENOTDIR', 'EISDIR', 'ELOOP', 'EXDEV', 'ENXIO', 'ENAMETOOLONG']);

export const isAbsent = (error: unknown): boolean => absent.has(errnoOf(error) ?? '');
