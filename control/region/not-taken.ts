import { AppError, type ErrorCode } from '../../shared/errors.ts';

type NotTakenCode = 'unavailable' | 'no_capacity' | 'timeout';

/** A host has certainly not begun a job, and another host may take it. */
export class NotTaken extends AppError {
  readonly hostId: string;

  constructor(hostId: string, code: NotTakenCode, message: string) {
    super(code, message);
    this.hostId = hostId;
  }
}

/**
 * A host's refusal of a job that it has not reported to have begun: `timeout` when the deadline
 * passed before.
 */
export function refusalOf(hostId: string, code: ErrorCode, message: string): AppError {
  const isOfHost = code === 'unavailable' || code === 'no_capacity' || code === 'timeout';
  return isOfHost ? new NotTaken(hostId, code, message) : new AppError(code, message);
}
