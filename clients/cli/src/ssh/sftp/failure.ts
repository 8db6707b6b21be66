import { ForbiddenError, NotFoundError } from '@berth/sdk';
import ssh2 from 'ssh2';

const { STATUS_CODE } = ssh2.utils.sftp;

/** A request that is refused, with the code by which SFTP tells why. */
export class Refused extends Error {
  readonly code: number;

  constructor(message: string, code: number = STATUS_CODE.FAILURE) {
    super(message);
    this.code = code;
  }
}

export const unsupported = (message: string): Refused =>
  new Refused(message, STATUS_CODE.OP_UNSUPPORTED);

export const missing = (path: string): Refused =>
  new Refused(`there is nothing at ${path}`, STATUS_CODE.NO_SUCH_FILE);

/** The code of SFTP for what went wrong. */
export function statusOf(error: unknown): number {
  if (error instanceof Refused) return error.code;
  if (error instanceof NotFoundError) return STATUS_CODE.NO_SUCH_FILE;
  if (error instanceof ForbiddenError) return STATUS_CODE.PERMISSION_DENIED;
  return STATUS_CODE.FAILURE;
}
