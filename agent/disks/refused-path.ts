import { AppError, errnoOf } from '../../shared/errors.ts';

/** What the caller is told of a path on a disk that openat2(2) refused; other errors stay. */
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
