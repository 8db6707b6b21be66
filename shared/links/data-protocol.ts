import Type from 'typebox';
import { AppError, type ErrorCode, errorCodes, toError } from '../errors.ts';
import { accountIdPattern, diskIdPattern } from '../ids.ts';
import { LIMITS } from '../limits.ts';
import type { Claims } from './single-use-token.ts';
import { compile } from '../validate.ts';

/*
 * The data endpoint, with which a control node reads a file of a disk from its host, and another
 * agent the source of a copy: GET or HEAD over plain HTTP on the host's internal port. The token
 * (shared/links/part-requests.ts) names the file; the caller's range and preconditions are passed
 * on unchanged. A failure carries its code and message in a header instead of a body, so that HEAD
 * reports it as well.
 */

export const DATA_PATH = '/data/file';
const ERROR_HEADER = 'x-berth-error';

/** The caller's request headers that are passed on to the host: ranges and preconditions. */
export const FILE_REQUEST_HEADERS = [
  'range',
  'if-range',
  'if-match',
  'if-none-match',
  'if-modified-since',
  'if-unmodified-since',
] as const;

/** The host's response headers that are passed on to the caller. */
export const FILE_RESPONSE_HEADERS = [
  'accept-ranges',
  'content-length',
  'content-range',
  'content-type',
  'etag',
  'last-modified',
] as const;

const DataRequest = Type.Object({
  accountId: Type.String({ pattern: accountIdPattern }),
  diskId: Type.String({ pattern: diskIdPattern }),
  /** `object`: with what the object API knows about the file, in a header. */
  operation: Type.Enum(['read', 'object']),
  /** The file, from the disk's root. */
  key: Type.String({ minLength: 1, maxLength: LIMITS.objectPathBytesMax }),
});
export type DataRequest = Type.Static<typeof DataRequest>;

const checkRequest = compile(DataRequest);

/** Reads the token's claims. @throws AppError `bad_request` when they name no file */
export const readDataRequest = (claims: Claims): DataRequest =>
  checkRequest(claims, 'data request');

export const dataErrorHeaders = ({ code, message }: AppError): Record<string, string> => ({
  [ERROR_HEADER]: `${code} ${encodeURIComponent(message.toWellFormed())}`,
});

/** The failure in an answer's headers; undefined when it succeeded. */
export function readDataError(headers: NodeJS.Dict<string | string[]>): AppError | undefined {
  const header = headers[ERROR_HEADER];
  if (typeof header !== 'string') return undefined;
  const [code = '', message = ''] = header.split(' ');
  try {
    const isKnown = (errorCodes as readonly string[]).includes(code);
    const known = isKnown ? (code as ErrorCode) : 'internal_server_error';
    return new AppError(known, decodeURIComponent(message));
  } catch (cause) {
    return new AppError('internal_server_error', toError(cause).message, { cause });
  }
}
