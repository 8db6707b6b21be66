import {
  createCipheriv,
  createDecipheriv,
  createHmac,
  hash,
  randomBytes,
  timingSafeEqual,
} from 'node:crypto';
import { parseJson } from './json.ts';

const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** SHA-256 in hex, as API keys are stored. */
export const sha256 = (content: string | Uint8Array): string => hash('sha256', content);

/** A URL-safe random text with 32 bytes of entropy. */
export const randomSecret = (): string => randomBytes(32).toString('base64url');

/**
 * Secrets of one kind: the first seals and signs, each of them opens and verifies
 * (docs/decisions/0076).
 */
export type Ring<T> = readonly [T, ...T[]];

/** @throws RangeError when there is none */
export function toRing<T>(secrets: readonly T[]): Ring<T> {
  const [first, ...others] = secrets;
  if (first === undefined) throw new RangeError('a ring has at least one secret');
  return [first, ...others];
}

/**
 * Encrypts with AES-256-GCM (NIST SP 800-38D) and the first key. `context` binds the text to its
 * place: unsealing with another context fails, so a sealed token cannot be moved into another
 * disk's record.
 * @param keys 32 bytes each
 * @returns base64 of nonce, tag and ciphertext
 */
export function seal([key]: Ring<Buffer>, plain: string, context: string): string {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(context));
  const text = Buffer.concat([cipher.update(plain, 'utf8'), cipher.final()]);
  return Buffer.concat([nonce, cipher.getAuthTag(), text]).toString('base64');
}

function open(key: Buffer, sealed: string, context: string): string {
  const bytes = Buffer.from(sealed, 'base64');
  const nonce = bytes.subarray(0, NONCE_BYTES);
  const tag = bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES);
  const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: TAG_BYTES });
  decipher.setAAD(Buffer.from(context)).setAuthTag(tag);
  const text = bytes.subarray(NONCE_BYTES + TAG_BYTES);
  return Buffer.concat([decipher.update(text), decipher.final()]).toString('utf8');
}

/** The contents of a sealed text, and the key of the ring that had sealed it. */
export interface Unsealed {
  readonly text: string;
  /** 0 for the one that seals now. */
  readonly keyIndex: number;
}

/**
 * Opens a text with whichever key sealed it. What is sealed does not name its key: AES-GCM tells
 * the right one.
 * @returns undefined when none of the keys did, the context differs, or the text was changed
 */
export function tryUnseal(
  keys: Ring<Buffer>,
  sealed: string,
  context: string,
): Unsealed | undefined {
  for (const [keyIndex, key] of keys.entries()) {
    try {
      return { text: open(key, sealed, context), keyIndex };
    } catch {
      // Another key may have sealed it.
    }
  }
  return undefined;
}

/** @throws Error when no key of the ring sealed it in this context, or the text was changed */
export function unseal(keys: Ring<Buffer>, sealed: string, context: string): string {
  const unsealed = tryUnseal(keys, sealed, context);
  if (unsealed === undefined) throw new Error('it was sealed with another key, or changed');
  return unsealed.text;
}

/**
 * Seals with the first key what a former one has sealed.
 * @returns undefined when the first one sealed it already
 * @throws Error as {@link unseal}
 */
export function reseal(keys: Ring<Buffer>, sealed: string, context: string): string | undefined {
  const unsealed = tryUnseal(keys, sealed, context);
  if (unsealed === undefined) throw new Error('it was sealed with another key, or changed');
  return unsealed.keyIndex === 0 ? undefined : seal(keys, unsealed.text, context);
}

const signature = (secret: string, purpose: string, body: string): string =>
  createHmac('sha256', secret).update(`${purpose}\n${body}`).digest('base64url');

/**
 * Makes a signed, expiring token for one purpose, such as `agent-link`, with the first secret.
 * Signed, not encrypted.
 * @param expiresAt milliseconds since the epoch
 */
export function signToken(
  [secret]: Ring<string>,
  purpose: string,
  claims: Record<string, string>,
  expiresAt: number,
): string {
  const body = Buffer.from(JSON.stringify({ ...claims, exp: expiresAt })).toString('base64url');
  return `${body}.${signature(secret, purpose, body)}`;
}

/**
 * Verifies a token in constant time, with each secret, so that one signed with a former secret
 * stays valid for as long as that is kept.
 * @returns its claims, `expired` or `invalid`
 */
export function verifyToken(
  secrets: Ring<string>,
  purpose: string,
  token: string,
  now = Date.now(),
): Record<string, unknown> | 'expired' | 'invalid' {
  for (const secret of secrets) {
    const verdict = verifyWith(secret, purpose, token, now);
    if (verdict !== 'invalid') return verdict;
  }
  return 'invalid';
}

function verifyWith(
  secret: string,
  purpose: string,
  token: string,
  now: number,
): ReturnType<typeof verifyToken> {
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
