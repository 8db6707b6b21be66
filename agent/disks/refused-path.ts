import { AppError, errnoOf } from '../../shared/errors.ts';

/**
 * Turns openat2(2)'s refusal of a path into an error for the caller; returns other errors as is.
 */
export function refusedPath(error: unknown, path: string): unknown {
  switch (errnoOf(error)) {
    case 'ENOENT':
    case 'ENOTDIR': {
      return new AppError('bad_request', `${path} does not exist on the disk`);
    }
    case 'EXDEV':
    case 'ELOOP': {
      return new AppError('bad_request', `${path} leads out of the disk`);
    }
    default: {
      return error;
    }
  }
}
