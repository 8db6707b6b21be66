import { createHash, createHmac } from 'node:crypto';
import { deriveSigningKey } from '../../agent/edge/s3/auth/sigv4-key.ts';
import { readSignature, verifySignature } from '../../agent/edge/s3/auth/sigv4.ts';
import type { RequestHead } from '../../agent/edge/s3/auth/canonical-request.ts';
import { S3Error } from '../../agent/edge/s3/protocol/errors.ts';

/** The credentials and the day of the examples in AWS's documentation. */
export const ACCESS_KEY_ID = 'AKIAIOSFODNN7EXAMPLE';
export const SECRET = 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY';
export const EXAMPLE_TIME = Date.UTC(2013, 4, 24);
export const EMPTY_SHA256 = createHash('sha256').digest('hex');

const CREDENTIAL = `${ACCESS_KEY_ID}/20130524/us-east-1/s3/aws4_request`;

export const authorization = (
  signedHeaders: string,
  signature: string,
  credential = CREDENTIAL,
): string =>
  `AWS4-HMAC-SHA256 Credential=${credential},SignedHeaders=${signedHeaders},Signature=${signature}`;

/** Reads and verifies, with the key of the examples. */
export function verify(head: RequestHead, now = EXAMPLE_TIME, secret = SECRET) {
  const claim = readSignature(head, now);
  if (claim === undefined) throw new Error('the request is not signed');
  return verifySignature(claim, deriveSigningKey(secret, claim.scope));
}

/** `ok`, or the code with which the request is refused. */
export function outcome(head: RequestHead, now = EXAMPLE_TIME, secret = SECRET): string {
  try {
    verify(head, now, secret);
    return 'ok';
  } catch (error) {
    if (error instanceof S3Error) return error.code;
    throw error;
  }
}

const hmac = (key: string | Buffer, text: string): Buffer =>
  createHmac('sha256', key).update(text).digest();

/** Signs a canonical request written out by hand, so that nothing of the verifier is used. */
export function signCanonical(
  lines: readonly string[],
  timestamp = '20130524T000000Z',
  region = 'us-east-1',
): string {
  const date = timestamp.slice(0, 8);
  const hash = createHash('sha256').update(lines.join('\n'), 'latin1').digest('hex');
  const text = `AWS4-HMAC-SHA256\n${timestamp}\n${date}/${region}/s3/aws4_request\n${hash}`;
  const key = hmac(hmac(hmac(hmac(`AWS4${SECRET}`, date), region), 's3'), 'aws4_request');
  return hmac(key, text).toString('hex');
}
