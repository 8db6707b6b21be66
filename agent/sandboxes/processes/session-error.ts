/** Why a client's message was refused; clients get the code and the message. */
export type SessionErrorCode =
  | 'invalid_request'
  | 'process_failed'
  | 'process_not_found'
  | 'max_concurrent_execs_reached'
  | 'sandbox_not_running'
  | 'no_capacity'
  | 'internal_error';

/** A refusal of what a client of a process session asked for. */
export class SessionError extends Error {
  readonly code: SessionErrorCode;

  constructor(code: SessionErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'SessionError';
    this.code = code;
  }
}
