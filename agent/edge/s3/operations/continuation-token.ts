import { S3Error } from '../protocol/errors.ts';

/** The token with which a client asks for what comes after a key, common prefix, or bucket. */
export const encodeToken = (key: string): string => Buffer.from(key).toString('base64url');

/** @throws S3Error InvalidArgument */
export function decodeToken(token: string): string {
  const key = Buffer.from(token, 'base64url').toString('utf8');
  if (key === '' || encodeToken(key) !== token) {
    throw new S3Error('InvalidArgument', 'The continuation token was not returned by a listing.');
  }
  return key;
}
