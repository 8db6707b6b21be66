/**
 * Every machine-readable error code that can reach a caller (docs/api.md, Codes). Only the control
 * tier knows the HTTP status of each.
 */
export const errorCodes = [
  'bad_request',
  'body_too_large',
  'unauthorized',
  'forbidden',
  'insufficient_scope',
  'not_found',
  'method_not_allowed',
  'expired',
  'precondition_failed',
  'range_not_satisfiable',
  'disk_conflict',
  'disk_limit_reached',
  'directory_full',
  'disk_moved',
  'host_full',
  'host_in_use',
  'idempotency_conflict',
  'idempotency_answer_lost',
  'disk_in_use',
  'delegation_conflict',
  'delegation_revoked',
  'image_not_ready',
  'sandbox_name_conflict',
  'sandbox_limit_reached',
  'sandbox_start_conflict',
  'sandbox_pausing',
  'sandbox_stopping',
  'sandbox_terminated',
  'sandbox_not_running',
  'sandbox_network_conflict',
  'sandbox_mounts_while_active',
  'sandbox_not_stopped',
  'sandbox_has_forks',
  'snapshot_name_conflict',
  'snapshot_limit_reached',
  'snapshot_not_ready',
  'snapshot_in_use',
  'is_a_directory',
  'not_a_directory',
  'not_a_file',
  'file_exists',
  'directory_not_empty',
  'link_not_followed',
  'other_file_system',
  'file_busy',
  'no_space',
  'permission_denied',
  'file_too_large',
  'rate_limited',
  'account_limit_reached',
  'timeout',
  'cancelled',
  'outcome_unknown',
  'no_capacity',
  'runtime_retryable',
  'unavailable',
  'not_enabled',
  'not_implemented',
  'internal_server_error',
] as const;

export type ErrorCode = (typeof errorCodes)[number];

/** An expected failure whose code and message are meant for the caller. */
export class AppError extends Error {
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'AppError';
    this.code = code;
  }
}

/** Returns what was thrown as an Error, so that a caught `unknown` can be logged and compared. */
export function toError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown));
}

/** The `errno` name of a system error (`ENOENT` …), or undefined. */
export function errnoOf(thrown: unknown): string | undefined {
  if (thrown instanceof AppError) return undefined; // Its code is of callers.
  const code: unknown = thrown instanceof Error ? Reflect.get(thrown, 'code') : undefined;
  return typeof code === 'string' ? code : undefined;
}

/** For `catch`: turns system errors of these names into undefined, and throws any other error. */
export const ignoring =
  (...names: string[]) =>
  (error: unknown): undefined => {
    if (!names.includes(errnoOf(error) ?? '')) throw error;
  };
