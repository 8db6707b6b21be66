import { errnoOf } from '../../../shared/errors.ts';
import type { DoorFault } from './messages.ts';

/** There is no connection to a port of a sandbox. */
export class DoorError extends Error {
  readonly fault: DoorFault;

  constructor(fault: DoorFault, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'DoorError';
    this.fault = fault;
  }
}

const OF_ERRNO: Readonly<Record<string, [fault: DoorFault, message: string]>> = {
  ECONNREFUSED: ['nothing_listens', 'nothing listens on the port'],
  ETIMEDOUT: ['timeout', 'the sandbox does not take connections'],
  EHOSTUNREACH: ['timeout', 'the sandbox does not take connections'],
  ENETUNREACH: ['timeout', 'the sandbox does not take connections'],
  ENOENT: ['not_running', 'the sandbox does not run'],
};

/** Turns a failed connection into an error for the caller; any other error as it is. */
export function toDoorError(error: unknown): unknown {
  const [fault, message] = OF_ERRNO[errnoOf(error) ?? ''] ?? [];
  if (fault === undefined || message === undefined) return error;
  return new DoorError(fault, message, { cause: error });
}
