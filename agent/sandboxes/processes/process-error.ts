import { GuestFailure } from '../../machines/guest-link/guest-errors.ts';

/** Why a client's message was refused; clients get the code and the message. */
export type SessionErrorCode =
  | 'invalid_request'
  | 'process_failed'
  | 'process_not_found'
  | 'max_concurrent_execs_reached'
  | 'sandbox_not_running'
  | 'no_capacity'
  | 'input_conflict'
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

export const processNotFound = (): SessionError =>
  new SessionError('process_not_found', 'there is no such process');

export const sandboxNotRunning = (): SessionError =>
  new SessionError('sandbox_not_running', 'the sandbox is not running');

export const guestSilent = (cause?: unknown): SessionError =>
  new SessionError('internal_error', 'the sandbox does not answer now; try again', { cause });

/** The client's error when the guest refuses a request, or does not answer in time. */
export function toSessionError(error: unknown): SessionError {
  if (error instanceof SessionError) return error;
  if (error instanceof GuestFailure) {
    if (error.code === 'unknownProcess') return processNotFound();
    if (error.code === 'unsupported') {
      return new SessionError('invalid_request', 'the process has no terminal');
    }
    const message = `the process could not be started: ${error.reason}`;
    return new SessionError('process_failed', message, { cause: error });
  }
  if (error instanceof RangeError) {
    return new SessionError('process_failed', error.message, { cause: error });
  }
  return guestSilent(error);
}
