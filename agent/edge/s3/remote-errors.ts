import { AppError } from '../../../shared/errors.ts';
import { parseJson } from '../../../shared/json.ts';
import { S3Error } from './protocol/errors.ts';
import type { ObjectInfo } from './store/object-info.ts';

/*
 * Objects between hosts: what the object API of the host that has a disk knows about one, and why
 * it cannot be read, in headers of the data endpoint's answer (shared/links/data-protocol.ts).
 */

export const OBJECT_HEADER = 'x-berth-object';

export const objectInfoHeaders = (info: ObjectInfo): Record<string, string> => ({
  [OBJECT_HEADER]: Buffer.from(JSON.stringify(info)).toString('base64url'),
});

/** Reads the header of an answer. @throws Error when it is not one of this cluster's agents */
export function readObjectInfo(header: string): ObjectInfo {
  const info = parseJson(Buffer.from(header, 'base64url').toString()) as ObjectInfo;
  return { ...info, modifiedAt: new Date(info.modifiedAt) };
}

/** The failure to open an object, as the other host learns of it. */
export function toRemoteError(error: S3Error): AppError {
  const code = error.code === 'NoSuchKey' ? 'not_found' : 'unavailable';
  return new AppError(code, error.message, { cause: error });
}

/** The error for a caller whose source another host refused to read. */
export function fromRemoteError(error: AppError): S3Error | AppError {
  if (error.code === 'not_found') return new S3Error('NoSuchKey');
  if (error.code === 'bad_request') return new S3Error('InvalidArgument', error.message);
  return error;
}
