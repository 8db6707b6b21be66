import { createHash, createHmac } from 'node:crypto';
import type { DiskUser } from './tools.ts';

/*
 * AWS Signature Version 4 written out by hand, so that tests can sign any request in either form,
 * and see the text that was signed.
 */

const ALGORITHM = 'AWS4-HMAC-SHA256';

const hmac = (key: string | Buffer, text: string): Buffer =>
  createHmac('sha256', key).update(text).digest();

export interface Wanted {
  readonly method: string;
  readonly path: string;
  /** Names and values, not escaped. */
  readonly query?: Readonly<Record<string, string>>;
  /** Headers besides Host that are sent and signed; names in lower case. */
  readonly headers?: Readonly<Record<string, string>>;
  readonly signedAgoMs?: number;
  /** Lifetime of a presigned URL. */
  readonly expiresSeconds?: number;
}

export interface SignedRequest {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly signature: string;
  readonly timestamp: string;
  readonly credential: string;
  readonly stringToSign: string;
}

const encode = (text: string): string =>
  encodeURIComponent(text).replaceAll(
    /[!'()*]/gu,
    (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
  );

const queryOf = (parameters: Readonly<Record<string, string>>): string =>
  Object.entries(parameters)
    .map(([name, value]) => `${encode(name)}=${encode(value)}`)
    .sort()
    .join('&');

/** Signs a request with the token of a disk user, in its headers or (presigned) in its query. */
export function signRequest(user: DiskUser, form: 'header' | 'query', wanted: Wanted) {
  const { method, path, query = {}, signedAgoMs = 0, expiresSeconds = 60 } = wanted;
  const signedAt = new Date(Date.now() - signedAgoMs);
  const timestamp = signedAt.toISOString().replaceAll(/[-:]|\.\d+/gu, '');
  const scope = [timestamp.slice(0, 8), 'us-east-1', 's3', 'aws4_request'];
  const credential = [user.identifier, ...scope].join('/');
  const payload = { 'x-amz-content-sha256': 'UNSIGNED-PAYLOAD' };
  const headers: Record<string, string> = {
    ...wanted.headers,
    ...(form === 'header' ? { ...payload, 'x-amz-date': timestamp } : {}),
  };
  const signed = { ...headers, host: new URL(user.s3Url).host };
  const names = Object.keys(signed).sort();
  const parameters = {
    ...query,
    ...(form === 'header'
      ? {}
      : {
          ...{ 'X-Amz-Algorithm': ALGORITHM, 'X-Amz-Credential': credential },
          ...{ 'X-Amz-Date': timestamp, 'X-Amz-Expires': String(expiresSeconds) },
          'X-Amz-SignedHeaders': names.join(';'),
        }),
  };
  const canonical = [
    ...[method, path, queryOf(parameters)],
    ...names.map((name) => `${name}:${signed[name as keyof typeof signed]}`),
    ...['', names.join(';'), payload['x-amz-content-sha256']],
  ].join('\n');
  const hash = createHash('sha256').update(canonical).digest('hex');
  const stringToSign = [ALGORITHM, timestamp, scope.join('/'), hash].join('\n');
  const key = scope.reduce<string | Buffer>(hmac, `AWS4${user.token}`);
  const signature = hmac(key, stringToSign).toString('hex');
  if (form === 'header') {
    headers['authorization'] =
      `${ALGORITHM} Credential=${credential},SignedHeaders=${names.join(';')},Signature=${signature}`;
  }
  const all = form === 'header' ? query : { ...parameters, 'X-Amz-Signature': signature };
  const url = `${user.s3Url}${path}?${queryOf(all)}`;
  return { url, headers, signature, timestamp, credential, stringToSign } satisfies SignedRequest;
}
