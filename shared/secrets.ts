import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createHmac,
  randomBytes,
  timingSafeEqual,
} from 'node:crypto';
import { parseJson } from './json.ts';

const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** SHA-256 in hex, as API keys are stored. */
export const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

/** A URL-safe random text with 32 bytes of entropy. */
export const randomSecret = (): string => randomBytes(32).toString('base64url');

/**
 * Encrypts with AES-256-GCM (NIST SP 800-38D). `context` binds the text to its place: unsealing with
 * another context fails, so a sealed token cannot be moved into another disk's record.
 * @returns base64 of nonce, tag and ciphertext
 */
export function seal(key: Buffer, plain: string, context: string): string {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(context));
  const text = Buffer.concat([cipher.update(plain, 'utf8'), cipher.final()]);
  return Buffer.concat([nonce, cipher.getAuthTag(), text]).toString('base64');
}

/** @throws Error when key or context differ from those it was sealed with, or the text was changed */
export function unseal(key: Buffer, sealed: string, context: string): string {
  const bytes = Buffer.from(sealed, 'base64');
  const nonce = bytes.subarray(0, NONCE_BYTES);
  const tag = bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES);
  const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: TAG_BYTES });
  decipher.setAAD(Buffer.from(context)).setAuthTag(tag);
  const text = bytes.subarray(NONCE_BYTES + TAG_BYTES);
  return Buffer.concat([decipher.update(text), decipher.final()]).toString('utf8');
}

const signature = (secret: string, purpose: string, body: string): string =>
  createHmac('sha256', secret).update(`${purpose}\n${body}`).digest('base64url');

/**
 * Makes a signed, expiring token for one purpose, such as `agent-link`. Signed, not encrypted.
 * @param expiresAt milliseconds since the epoch
 */
export function signToken(
  secret: string,
  purpose: string,
  claims: Record<string, string>,
  expiresAt: number,
): string {
  const body = Buffer.from(JSON.stringify({ ...claims, exp: expiresAt })).toString('base64url');
  return `${body}.${signature(secret, purpose, body)}`;
}

/**
 * Verifies a token with each key of a ring, so that a token signed with a former key stays valid for
 * as long as that key is kept.
 */
export function verifyTokenOfRing(
  secrets: readonly string[],
  purpose: string,
  token: string,
  now = Date.now(),
): ReturnType<typeof verifyToken> {
  for (const secret of secrets) {
    const verdict = verifyToken(secret, purpose, token, now);
    if (verdict !== 'invalid') return verdict;
  }
  return 'invalid';
}

/** Verifies a token in constant time. @returns its claims, `expired` or `invalid` */
export function verifyToken(
  secret: string,
  purpose: string,
  token: string,
  now = Date.now(),
): Record<string, unknown> | 'expired' | 'invalid' {
  const [body = '', given = '', ...rest] = token.split('.');
  const expected = Buffer.from(signature(secret, purpose, body));
  const actual = Buffer.from(given);
  if (rest.length > 0 || actual.length !== expected.length) return 'invalid';
  if (!timingSafeEqual(actual, expected)) return 'invalid';
  const claims: unknown = parseJson(Buffer.from(body, 'base64url').toString('utf8'));
  if (typeof claims !== 'object' || claims === null) return 'invalid';
  const expiresAt: unknown = Reflect.get(claims, 'exp');
  if (typeof expiresAt !== 'number') return 'invalid';
  return expiresAt < now ? 'expired' : { ...claims };
}
