import { AppError, type ErrorCode } from '../../shared/errors.ts';
import { isRedisFailure } from '../../shared/directory/redis.ts';

/** The HTTP status of each error code; nothing else maps them (docs/api.md, Codes). */
export const statusOf: Readonly<Record<ErrorCode, number>> = {
  bad_request: 400,
  unauthorized: 401,
  forbidden: 403,
  insufficient_scope: 403,
  not_found: 404,
  method_not_allowed: 405,
  expired: 410,
  precondition_failed: 412,
  range_not_satisfiable: 416,
  disk_conflict: 409,
  disk_in_use: 409,
  host_in_use: 409,
  idempotency_conflict: 409,
  idempotency_answer_lost: 409,
  delegation_conflict: 409,
  delegation_revoked: 409,
  disk_limit_reached: 400,
  sandbox_limit_reached: 400,
  snapshot_limit_reached: 400,
  image_not_ready: 409,
  sandbox_name_conflict: 409,
  sandbox_start_conflict: 409,
  sandbox_pausing: 409,
  sandbox_stopping: 409,
  sandbox_terminated: 409,
  sandbox_not_running: 409,
  sandbox_network_conflict: 409,
  sandbox_mounts_while_active: 409,
  sandbox_not_stopped: 409,
  sandbox_has_forks: 409,
  snapshot_name_conflict: 409,
  snapshot_not_ready: 409,
  snapshot_in_use: 409,
  is_a_directory: 409,
  not_a_directory: 409,
  not_a_file: 409,
  file_exists: 409,
  directory_not_empty: 409,
  link_not_followed: 409,
  other_file_system: 409,
  file_busy: 409,
  no_space: 409,
  permission_denied: 403,
  file_too_large: 413,
  body_too_large: 413,
  rate_limited: 429,
  account_limit_reached: 429,
  cancelled: 499,
  internal_server_error: 500,
  outcome_unknown: 500,
  not_implemented: 501,
  no_capacity: 503,
  runtime_retryable: 503,
  unavailable: 503,
  directory_full: 503,
  disk_moved: 503,
  host_full: 503,
  not_enabled: 503,
  timeout: 504,
};

const RETRY_AFTER_SECONDS = 2;

export const retryAfter = (code: ErrorCode): number | undefined =>
  (statusOf[code] === 503 && code !== 'not_enabled') || statusOf[code] === 429
    ? RETRY_AFTER_SECONDS
    : undefined;

/**
 * Codes that sandbox clients give up on at once, though waiting helps, and what is sent instead.
 */
const waitedOutAs: Readonly<Partial<Record<ErrorCode, ErrorCode>>> = {
  unavailable: 'runtime_retryable',
  disk_moved: 'runtime_retryable',
  host_full: 'no_capacity',
  directory_full: 'no_capacity',
};

/** The code for callers that bring up sandboxes, instead of another one. */
export const waitableCode = (code: ErrorCode): ErrorCode => waitedOutAs[code] ?? code;

/**
 * The error for a caller that creates, starts, resumes or forks a sandbox: such clients wait out
 * `no_capacity` and `runtime_retryable` and give up on any other code.
 */
export function toWaitableError(error: AppError): AppError {
  const code = waitableCode(error.code);
  return code === error.code ? error : new AppError(code, error.message, { cause: error });
}

/** The caller's view of any failure; the text of unexpected ones stays in the log. */
export function toCallerError(thrown: unknown): AppError {
  if (thrown instanceof AppError) return thrown;
  if (isRedisFailure(thrown)) {
    return new AppError('unavailable', 'the directory cannot be reached now; try again', {
      cause: thrown,
    });
  }
  return new AppError('internal_server_error', 'internal error', { cause: thrown });
}
