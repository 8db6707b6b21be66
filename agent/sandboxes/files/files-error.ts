import { AppError } from '../../../shared/errors.ts';
import { GuestFailure, guestSilent } from '../../machines/guest-link/guest-errors.ts';

export const notRunning = (): AppError =>
  new AppError('sandbox_not_running', 'the sandbox is not running: its files are out of reach');

/** The error for the caller when the guest does not begin an operation, or is lost in it. */
export function toFilesError(error: unknown): AppError {
  if (error instanceof AppError) return error;
  if (!(error instanceof GuestFailure)) return guestSilent(error);
  if (error.code === 'unknownProcess') {
    const message =
      'the sandbox was started before its host could serve files: stop it and start it';
    return new AppError('not_enabled', message, { cause: error });
  }
  const message = `the sandbox cannot begin it now: ${error.message}`;
  return new AppError('no_capacity', message, { cause: error });
}
