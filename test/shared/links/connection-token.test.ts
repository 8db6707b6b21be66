import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import type { KeyObject } from 'node:crypto';
import { newAccountId, newHostId, newSandboxId } from '../../../shared/ids.ts';
import { LIMITS } from '../../../shared/limits.ts';
import {
  type ConnectionClaims,
  ConnectionSigner,
  readConnectionKey,
  verifyConnectionToken,
} from '../../../shared/links/connection-token.ts';
import { readConnectionKeys, signConnectionKeys } from '../../../shared/links/connection-keys.ts';
import { type Ring, signToken } from '../../../shared/secrets.ts';
import { unicodeText } from '../../helpers/unicode-text.ts';

const region = 'local-test';
const signingKey = 'a-signing-key-of-the-cluster-of-38-chr';
const now = Date.parse('2026-01-01T00:00:00.000Z');
const signer = new ConnectionSigner([signingKey], region);
const claims = {
  sandboxId: newSandboxId(),
  accountId: newAccountId(),
  hostId: newHostId(),
  expiresAt: now + LIMITS.connectionTokenTtlMs,
};

/** Verifies with the public keys of some signers. */
function verifyWith(
  signers: readonly ConnectionSigner[],
  token: string,
  at = now,
): ConnectionClaims | undefined {
  const texts = signers.flatMap(({ publicKeys }) => publicKeys);
  const keys = new Map(texts.map((text): [string, KeyObject] => [text, readConnectionKey(text)]));
  return verifyConnectionToken(token, (text) => keys.get(text), at);
}

test('a connection token returns its claims until it expires', (t) => {
  const token = signer.sign(claims);
  t.deepEqual(verifyWith([signer], token), { ...claims, region });
  t.deepEqual(verifyWith([signer], token, claims.expiresAt - 1), { ...claims, region });
  t.is(verifyWith([signer], token, claims.expiresAt), undefined);
  t.regex(token, /^[\w-]+\.[\w-]+\.[\w-]+$/u, 'it needs no escaping in a URL');
  t.true(token.length < LIMITS.connectionTokenLengthMax / 2, 'the length limit is generous');
});

test('a connection token changed in any place is invalid', (t) => {
  const token = signer.sign(claims);
  const letter = fc.constantFrom(...'aZ09-_.= é'.split(''));
  fc.assert(
    fc.property(fc.nat(token.length - 1), letter, (at, changed) => {
      const forged = token.slice(0, at) + changed + token.slice(at + 1);
      t.is(verifyWith([signer], forged) !== undefined, forged === token);
    }),
    { numRuns: 500 },
  );
});

test('the signature of a connection token has one spelling', (t) => {
  const token = signer.sign(claims);
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
  // The last character has four bits that decoders ignore.
  const valid = alphabet
    .split('')
    .filter((last) => verifyWith([signer], token.slice(0, -1) + last) !== undefined);
  t.deepEqual(valid, [token.slice(-1)]);
  t.is(verifyWith([signer], `${token}=`), undefined);
  t.is(verifyWith([signer], `${token}.`), undefined);
});

test('claims of one connection token do not fit the signature of another', (t) => {
  const other = signer.sign({ ...claims, sandboxId: newSandboxId() });
  const [key = '', , signature = ''] = signer.sign(claims).split('.');
  const [, otherBody = ''] = other.split('.');
  t.is(verifyWith([signer], `${key}.${otherBody}.${signature}`), undefined);
});

test('keys of another region or another signing key verify nothing', (t) => {
  const token = signer.sign(claims);
  const elsewhere = new ConnectionSigner([signingKey], 'local-other');
  const stranger = new ConnectionSigner([`${signingKey}x`], region);
  t.is(verifyWith([elsewhere, stranger], token), undefined);
  t.is(verifyWith([signer], elsewhere.sign(claims)), undefined);
  const [, body = '', signature = ''] = stranger.sign(claims).split('.');
  const [key = ''] = signer.publicKeys;
  t.is(verifyWith([signer], `${key}.${body}.${signature}`), undefined);
});

test('tokens for another purpose are no connection tokens', (t) => {
  const texts = { ...claims, expiresAt: String(claims.expiresAt), region };
  for (const purpose of ['share', 'sandbox-connection', 'agent-link']) {
    const token = signToken([signingKey], purpose, texts, claims.expiresAt);
    t.is(verifyWith([signer], token), undefined);
    t.is(verifyWith([signer], `${signer.publicKeys.join('')}.${token}`), undefined);
  }
});

test('the first key of the ring signs, and every key of it is told to agents', (t) => {
  const former = new ConnectionSigner([signingKey], region);
  const ring = new ConnectionSigner([`${signingKey}-new`, signingKey], region);
  t.deepEqual(verifyWith([ring], former.sign(claims)), { ...claims, region });
  t.is(verifyWith([former], ring.sign(claims)), undefined);
  t.is(ring.publicKeys[1], former.publicKeys[0]);
});

test('a signed text whose claims are not of this version is invalid', (t) => {
  const { hostId: _, ...less } = claims;
  t.is(verifyWith([signer], signer.sign(less as typeof claims)), undefined);
  t.is(verifyWith([signer], signer.sign({ ...claims, sandboxId: 'x' })), undefined);
  t.is(verifyWith([signer], signer.sign({ ...claims, expiresAt: Number.NaN })), undefined);
});

test('a connection token that is too long is refused before it is looked at', (t) => {
  const long = signer.sign({ ...claims, accountId: 'x'.repeat(LIMITS.connectionTokenLengthMax) });
  t.is(
    verifyConnectionToken(long, () => t.fail('the key was looked up'), now),
    undefined,
  );
});

test('any text is judged without an exception', (t) => {
  const [key = ''] = signer.publicKeys;
  const part = fc.oneof(fc.base64String(), unicodeText(), fc.constant(key));
  const dotted = fc.array(part, { maxLength: 5 }).map((parts) => parts.join('.'));
  const keyed = fc.tuple(part, unicodeText({ size: 'medium' }));
  fc.assert(
    fc.property(
      fc.oneof(
        dotted,
        unicodeText(),
        keyed.map(([a, b]) => `${key}.${a}.${b}`),
      ),
      (token) => {
        t.is(verifyWith([signer], token), undefined);
      },
    ),
    { numRuns: 500 },
  );
});

const clusterSecrets = ['the-secret-of-the-cluster-of-38-chars-'] as const;
const link = { nodeId: 'node-0123456789ab', hostId: claims.hostId, region };

test('an agent accepts the keys that a node of its cluster signed for this link', (t) => {
  const ring = new ConnectionSigner([signingKey, `${signingKey}-former`], region);
  const signed = signConnectionKeys(clusterSecrets, link, ring.publicKeys);
  t.deepEqual(readConnectionKeys(clusterSecrets, link, signed), [...ring.publicKeys]);
});

test('keys of another cluster, link or time are refused, and so is what is no list of keys', (t) => {
  const { publicKeys } = signer;
  const signed = signConnectionKeys(clusterSecrets, link, publicKeys);
  const refuses = (secret: Ring<string>, to: typeof link, text: string): void => {
    t.throws(() => readConnectionKeys(secret, to, text), { message: /connection keys/u });
  };
  refuses([`${clusterSecrets[0]}x`], link, signed);
  refuses(clusterSecrets, { ...link, nodeId: 'node-ba9876543210' }, signed);
  refuses(clusterSecrets, { ...link, hostId: newHostId() }, signed);
  refuses(clusterSecrets, { ...link, region: 'local-other' }, signed);
  refuses(clusterSecrets, link, '');
  const former = signToken(
    clusterSecrets,
    'connection-keys',
    { ...link, keys: '' },
    Date.now() - 1,
  );
  refuses(clusterSecrets, link, former);
  for (const keys of [[], ['short'], Array.from({ length: 5 }, () => publicKeys[0] ?? '')]) {
    refuses(clusterSecrets, link, signConnectionKeys(clusterSecrets, link, keys));
  }
});
