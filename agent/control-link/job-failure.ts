import { AppError } from '../../shared/errors.ts';
import { type JobKind, jobKind } from '../../shared/jobs/jobs.ts';
import { isStorageFailure } from '../system/storage-failure.ts';
import { toAppError } from '../system/to-app-error.ts';

/**
 * Converts the failure of a job into what the caller is told. After a failure of the host's storage
 * nobody knows how far the job came, so the caller may try again only what can be repeated.
 */
export function toJobFailure(kind: JobKind, error: unknown): AppError {
  if (!isStorageFailure(error)) return toAppError(error);
  const message = 'the storage of the host failed while it did this';
  return jobKind(kind).isRepeatable
    ? new AppError('unavailable', `${message}; try again`, { cause: error })
    : new AppError('outcome_unknown', `${message}; whether the work was done is not known`, {
        cause: error,
      });
}
