import Type from 'typebox';
import { AppError, type ErrorCode, errorCodes, toError } from './errors.ts';
import { accountIdPattern, diskIdPattern } from './ids.ts';
import { LIMITS } from './limits.ts';
import type { Claims } from './single-use-token.ts';
import { compile } from './validate.ts';

/*
 * The data endpoint: how a control node has a host read a file of a disk, over plain HTTP on the
 * host's internal port. GET or HEAD whose token (shared/part-requests.ts) says which file; the
 * caller's range and preconditions travel as they are. A failure has no body, so that HEAD can tell
 * it too: the code and the message stand in a header.
 */

export const DATA_PATH = '/data/file';
const ERROR_HEADER = 'x-berth-error';

/** What the caller says about the parts of the file that it wants; nothing else reaches the host. */
export const FILE_REQUEST_HEADERS = [
  'range',
  'if-range',
  'if-match',
  'if-none-match',
  'if-modified-since',
  'if-unmodified-since',
] as const;

/** What the host says about the file; nothing else reaches the caller. */
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
  operation: Type.Literal('read'),
  /** The file, from the disk's root. */
  key: Type.String({ minLength: 1, maxLength: LIMITS.shareKeyBytesMax }),
});
export type DataRequest = Type.Static<typeof DataRequest>;

const checkRequest = compile(DataRequest);

/** What a control node asks for. @throws AppError unless the claims are those of such a request */
export const readDataRequest = (claims: Claims): DataRequest =>
  checkRequest(claims, 'data request');

export const dataErrorHeaders = ({ code, message }: AppError): Record<string, string> => ({
  [ERROR_HEADER]: `${code} ${encodeURIComponent(message.toWellFormed())}`,
});

/** The failure that an answer carries, or undefined. */
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
