import { createHmac } from 'node:crypto';
import { textsOf } from './objects.ts';
import type { DiskUser } from './tools.ts';

export interface FormOptions {
  readonly fields?: Record<string, string>;
  readonly conditions?: readonly unknown[];
  readonly expiresInMs?: number;
  readonly file?: string;
  readonly secret?: string;
  /** The origin of the page with the form. */
  readonly origin?: string;
  /** Where to send it instead of the user's own. */
  readonly s3Url?: string;
  /** Whether its policy names the disk. */
  readonly isBound?: boolean;
  /** How long ago it was signed; negative for a time to come. */
  readonly signedAgoMs?: number;
  /** The signed text, instead of a policy made of the conditions. */
  readonly policy?: string;
  /** The query of the request, with its question mark. */
  readonly query?: string;
}

const hmac = (key: string | Buffer, text: string): Buffer =>
  createHmac('sha256', key).update(text).digest();

/** Sends a form signed as AWS documents it for browsers. */
export async function postForm(user: DiskUser, options: FormOptions) {
  const { fields = {}, conditions = [], expiresInMs = 60_000, file = 'contents' } = options;
  const { isBound = true } = options;
  const signedAt = new Date(Date.now() - (options.signedAgoMs ?? 0));
  const timestamp = signedAt.toISOString().replaceAll(/[-:]|\.\d+/gu, '');
  const scope = [timestamp.slice(0, 8), 'us-east-1', 's3', 'aws4_request'];
  const signed = {
    'x-amz-algorithm': 'AWS4-HMAC-SHA256',
    'x-amz-credential': [user.identifier, ...scope].join('/'),
    'x-amz-date': timestamp,
  };
  const document = JSON.stringify({
    expiration: new Date(Date.now() + expiresInMs).toISOString(),
    conditions: [
      ...Object.entries(signed).map(([name, value]) => ({ [name]: value })),
      ...(isBound ? [{ bucket: user.disk }] : []),
      ...conditions,
    ],
  });
  const policy = options.policy ?? Buffer.from(document).toString('base64');
  const key = scope.reduce<string | Buffer>(hmac, `AWS4${options.secret ?? user.token}`);
  const form = new FormData();
  const signature = hmac(key, policy).toString('hex');
  const all = { ...fields, ...signed, policy, 'X-Amz-Signature': signature };
  for (const [name, value] of Object.entries(all)) form.append(name, value);
  form.append('file', new Blob([file]), 'photo.jpg');
  const response = await fetch(
    `${options.s3Url ?? user.s3Url}/${user.disk}${options.query ?? ''}`,
    {
      method: 'POST',
      body: form,
      redirect: 'manual',
      headers: options.origin === undefined ? {} : { origin: options.origin },
    },
  );
  const text = await response.text();
  const [code] = textsOf(text, 'Code');
  return { status: response.status, headers: response.headers, text, code };
}
