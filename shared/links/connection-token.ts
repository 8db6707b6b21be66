import {
  createPrivateKey,
  createPublicKey,
  hkdfSync,
  type KeyObject,
  sign,
  verify,
} from 'node:crypto';
import Type from 'typebox';
import { accountIdPattern, hostIdPattern, sandboxIdPattern } from '../ids.ts';
import { parseJson } from '../json.ts';
import { LIMITS } from '../limits.ts';
import { compile } from '../validate.ts';
import type { Ring } from '../secrets.ts';
import { toRing } from '../secrets.ts';

/*
 * The token in a sandbox connection's URL: control signs it, the agent that owns the sandbox
 * verifies it. The key pairs (Ed25519, RFC 8032) are derived from SIGNING_KEYS for this purpose and
 * one region, so that agents, which know only public keys, can forge neither these tokens nor share
 * links.
 *
 * A token is `<public key>.<claims>.<signature>`, each in base64url; the key says which one to
 * verify with. Tokens are text in one spelling only: a changed character makes a token invalid.
 */

const PURPOSE = 'sandbox-connection';
const SEED_BYTES = 32;
const SIGNATURE_LENGTH = 86; // 64 bytes in base64url.
/** The bytes before the seed in an Ed25519 private key in PKCS #8 (RFC 8410, section 10.3). */
const PKCS8_PREFIX = Buffer.from('302e020100300506032b657004220420', 'hex');

/** A public key as agents are told it: 32 bytes in base64url. */
export const connectionKeyPattern = '^[A-Za-z0-9_-]{43}$';

const ConnectionClaims = Type.Object({
  sandboxId: Type.String({ pattern: sandboxIdPattern }),
  accountId: Type.String({ pattern: accountIdPattern }),
  /** The host that owns the sandbox; no other one accepts the token. */
  hostId: Type.String({ pattern: hostIdPattern }),
  region: Type.String(),
  /** Milliseconds since the epoch, by the clock of the control node. */
  expiresAt: Type.Integer({ minimum: 0 }),
  /** When sessions that the token opened end; absent: not by the clock. */
  sessionEndsAt: Type.Optional(Type.Integer({ minimum: 0 })),
});
/**
 * The rights that a connection token grants: processes of one sandbox, on one host, until it
 * expires.
 */
export type ConnectionClaims = Type.Static<typeof ConnectionClaims>;

const checkClaims = compile(ConnectionClaims);

const signedText = (publicKey: string, body: string): Buffer =>
  Buffer.from(`${PURPOSE}\n${publicKey}.${body}`);

function derivePrivateKey(signingKey: string, region: string): KeyObject {
  const seed = hkdfSync('sha256', signingKey, '', `berth:${PURPOSE}:${region}`, SEED_BYTES);
  const key = Buffer.concat([PKCS8_PREFIX, Buffer.from(seed)]);
  return createPrivateKey({ key, format: 'der', type: 'pkcs8' });
}

const publicTextOf = (privateKey: KeyObject): string =>
  createPublicKey(privateKey).export({ format: 'jwk' }).x ?? '';

/** @throws Error when the text is not the public key of a connection key pair */
export function readConnectionKey(text: string): KeyObject {
  return createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x: text }, format: 'jwk' });
}

/** A control node's connection keys: the first signs, agents accept all. */
export class ConnectionSigner {
  /** The public keys of the whole ring, the one that signs first. */
  readonly publicKeys: readonly string[];
  readonly #privateKey: KeyObject;
  readonly #region: string;

  /** @param signingKeys the node's SIGNING_KEYS */
  constructor(signingKeys: Ring<string>, region: string) {
    const privateKeys = toRing(signingKeys.map((key) => derivePrivateKey(key, region)));
    [this.#privateKey] = privateKeys;
    this.publicKeys = privateKeys.map(publicTextOf);
    this.#region = region;
  }

  /** Signs a token for this region. */
  sign(claims: Omit<ConnectionClaims, 'region'>): string {
    const [publicKey = ''] = this.publicKeys;
    const text = JSON.stringify({ ...claims, region: this.#region });
    const body = Buffer.from(text).toString('base64url');
    const signature = sign(null, signedText(publicKey, body), this.#privateKey);
    return `${publicKey}.${body}.${signature.toString('base64url')}`;
  }
}

/**
 * Reads a token from a URL. Never throws, whatever the text is.
 * @param find the public key of that text, if it is one that control signs with
 * @returns undefined for a token that is malformed, expired, or not signed with such a key
 */
export function verifyConnectionToken(
  token: string,
  find: (publicKey: string) => KeyObject | undefined,
  now = Date.now(),
): ConnectionClaims | undefined {
  if (token.length > LIMITS.connectionTokenLengthMax) return undefined;
  const [publicKey = '', body = '', signature = '', ...rest] = token.split('.');
  const key = find(publicKey);
  if (rest.length > 0 || key === undefined) return undefined;
  const bytes = Buffer.from(signature, 'base64url');
  // Decoding ignores what does not belong to base64url, and the spare bits of the last character.
  if (signature.length !== SIGNATURE_LENGTH || bytes.toString('base64url') !== signature) {
    return undefined;
  }
  if (!verify(null, signedText(publicKey, body), key, bytes)) return undefined;
  const claims = parseClaims(body);
  return claims !== undefined && claims.expiresAt > now ? claims : undefined;
}

/** @returns undefined for claims that only a control node of another version could have signed */
function parseClaims(body: string): ConnectionClaims | undefined {
  try {
    const text = Buffer.from(body, 'base64url').toString('utf8');
    return checkClaims(parseJson(text), 'connection token');
  } catch {
    return undefined;
  }
}
