import { AppError, type ErrorCode } from '../../shared/errors.ts';
import type { JobKind, JobResults } from '../../shared/jobs/jobs.ts';
import { Overdue } from './overdue.ts';
import type { JobCall } from './job-dispatch.ts';
import type { Deps } from './deps.ts';

/** After these errors nothing was made on the host; after any other, parts of it may be there. */
const NOTHING_LEFT: ReadonlySet<ErrorCode> = new Set([
  'no_capacity',
  'host_full',
  'not_enabled',
  'not_found',
  'sandbox_start_conflict',
  'sandbox_pausing',
  'sandbox_stopping',
  'sandbox_terminated',
  'snapshot_not_ready',
]);

/**
 * A host was lost while it made something. The host removes what it has made by its id, perhaps
 * late, so nothing else may ever be made with that id.
 */
export class LostHost extends AppError {
  constructor(cause: AppError) {
    super('unavailable', 'the host was lost meanwhile; nothing was created; try again', { cause });
  }
}

/** Kinds that journal their sandbox once it is copied, which takes as long as there is data. */
const COPIES: ReadonlySet<JobKind> = new Set(['sandbox.fork', 'sandbox.fromSnapshot']);

/** A sandbox or snapshot to be made, as its callers know it. */
interface Making<K extends JobKind, T> {
  readonly resultOf: (result: JobResults[K]) => T;
  /** Finds the record that the host has published. */
  readonly find: () => Promise<T | undefined>;
  /** Has the host remove what it may have made. */
  readonly discard: () => Promise<void>;
}

/**
 * Has a host make something at most once.
 * @returns the result, once its host has journalled it
 * @throws AppError the host's error, or that it did not answer; nothing is left there then.
 *   {@link LostHost} when it may have begun; `timeout` when it takes too long to copy
 */
export async function beginOnHost<K extends JobKind, T>(
  { jobs }: Pick<Deps, 'jobs'>,
  call: JobCall<K>,
  { resultOf, find, discard }: Making<K, T>,
): Promise<T> {
  try {
    return resultOf((await jobs.call(call)).result);
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    if (error.code === 'outcome_unknown' || error.code === 'timeout') {
      // The host may have been lost after it journalled the thing, which then exists.
      const published = await find().catch(() => undefined);
      if (published !== undefined) return published;
    }
    if (!NOTHING_LEFT.has(error.code)) await discard();
    if (error instanceof Overdue && COPIES.has(call.kind)) throw tookTooLong(error);
    throw error.code === 'outcome_unknown' ? new LostHost(error) : error;
  }
}

/** Callers that ask again at once would have the same copied again, and be told the same. */
function tookTooLong(cause: AppError): AppError {
  const message = 'its host did not copy it in time, so it was given up; nothing was created';
  return new AppError('timeout', message, { cause });
}
