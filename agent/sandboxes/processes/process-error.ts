import { GuestFailure } from '../../machines/guest-link/guest-errors.ts';

/** Why a client's message was refused; clients get the code and the message. */
export type ProcessErrorCode =
  | 'invalid_request'
  | 'process_failed'
  | 'process_not_found'
  | 'max_concurrent_execs_reached'
  | 'sandbox_not_running'
  | 'no_capacity'
  | 'input_conflict'
  | 'internal_error';

/** A refusal of what a client of a process connection asked for. */
export class ProcessError extends Error {
  readonly code: ProcessErrorCode;

  constructor(code: ProcessErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'ProcessError';
    this.code = code;
  }
}

export const processNotFound = (): ProcessError =>
  new ProcessError('process_not_found', 'there is no such process');

export const sandboxNotRunning = (): ProcessError =>
  new ProcessError('sandbox_not_running', 'the sandbox is not running');

export const guestSilent = (cause?: unknown): ProcessError =>
  new ProcessError('internal_error', 'the sandbox does not answer now; try again', { cause });

/** The client's error when the guest refuses a request, or does not answer in time. */
export function toProcessError(error: unknown): ProcessError {
  if (error instanceof ProcessError) return error;
  if (error instanceof GuestFailure) {
    if (error.code === 'unknownProcess') return processNotFound();
    if (error.code === 'unsupported') {
      return new ProcessError('invalid_request', 'the process has no terminal');
    }
    const message = `the process could not be started: ${error.reason}`;
    return new ProcessError('process_failed', message, { cause: error });
  }
  if (error instanceof RangeError) {
    return new ProcessError('process_failed', error.message, { cause: error });
  }
  return guestSilent(error);
}
