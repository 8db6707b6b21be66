import { isRedisFailure } from '../../shared/directory/redis.ts';
import { AppError, errnoOf } from '../../shared/errors.ts';
import { ProgramError } from './spawn.ts';

const OUT_OF_RESOURCES = /^(?:EMFILE|ENFILE|EAGAIN|ENOMEM)$/u;

/** The host had no descriptor, process or memory left for it; nothing was begun. */
export const isOutOfResources = (error: unknown): boolean =>
  OUT_OF_RESOURCES.test(errnoOf(error) ?? '') || (error instanceof ProgramError && error.wasKilled);

/** What the caller is told of whatever a host failed at; the text of the unexpected stays here. */
export function toAppError(error: unknown): AppError {
  if (error instanceof AppError) return error;
  if (isRedisFailure(error)) {
    // Only what comes before the work itself asks Redis.
    return new AppError('unavailable', 'the host cannot reach the directory now; try again');
  }
  // Of SQLite and of the system: the journal or a file could not be written.
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
