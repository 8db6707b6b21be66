import { isRedisFailure } from '../../shared/directory/redis.ts';
import { AppError, errnoOf } from '../../shared/errors.ts';
import { ProgramError } from './spawn.ts';

const OUT_OF_RESOURCES = /^(?:EMFILE|ENFILE|EAGAIN|ENOMEM)$/u;

/** Whether the host had no descriptor, process or memory left, so that nothing was begun. */
export const isOutOfResources = (error: unknown): boolean =>
  OUT_OF_RESOURCES.test(errnoOf(error) ?? '') || (error instanceof ProgramError && error.wasKilled);

/**
 * Converts any failure into what the caller is told. The text of unexpected errors stays in the
 * log.
 */
export function toAppError(error: unknown): AppError {
  if (error instanceof AppError) return error;
  if (isRedisFailure(error)) {
    // A job asks Redis only before it changes anything, so nothing was begun.
    return new AppError('unavailable', 'the host cannot reach the directory now; try again');
  }
  // SQLite's and the system's code for a journal or file that cannot be written.
  if (/^(?:SQLITE_FULL|ENOSPC)$/u.test(errnoOf(error) ?? '')) {
    return new AppError('host_full', 'the storage of the host is full; try again', {
      cause: error,
    });
  }
  if (isOutOfResources(error)) {
    const message = 'the host has no descriptors, processes or memory left for this; try again';
    return new AppError('no_capacity', message, { cause: error });
  }
  return new AppError('internal_server_error', 'the host could not do this', { cause: error });
}
