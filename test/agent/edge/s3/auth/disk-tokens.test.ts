import { createHmac, randomBytes } from 'node:crypto';
import test from 'ava';
import { DiskTokens } from '../../../../../agent/edge/s3/auth/disk-tokens.ts';
import type { Scope } from '../../../../../agent/edge/s3/auth/sigv4-key.ts';
import { EDGE_LIMITS } from '../../../../../agent/edge/limits.ts';
import { seal, toRing } from '../../../../../shared/secrets.ts';

const keys = toRing([randomBytes(32), randomBytes(32)]);
const hmac = (key: string | Buffer, text: string): Buffer =>
  createHmac('sha256', key).update(text).digest();

const scopeOf = (date: string, region: string): Scope => ({
  ...{ date, region, text: `${date}/${region}/s3/aws4_request` },
});

const expected = (token: string, { date, region }: Scope): Buffer =>
  hmac(hmac(hmac(hmac(`AWS4${token}`, date), region), 's3'), 'aws4_request');

test('signing keys are those of their token and scope, whatever was asked for before', (t) => {
  const tokens = new DiskTokens(keys);
  const scopes = [scopeOf('20260101', 'r'), scopeOf('20260102', 'r'), scopeOf('20260101', 'q')];
  const sealed = new Map(['one', 'two'].map((token) => [token, seal(keys, token, 'dsk-1')]));
  for (let round = 0; round < 2; round += 1) {
    for (const scope of [...scopes, ...scopes]) {
      for (const [token, text] of sealed) {
        t.deepEqual(
          tokens.signingKey(text, 'dsk-1', scope).export(),
          expected(token, scope),
          `${token} ${scope.text}`,
        );
        t.is(tokens.open(text, 'dsk-1'), token);
      }
    }
  }
});

test('a sealed token opens for its own disk only, also when it was opened before', (t) => {
  const tokens = new DiskTokens(keys);
  const sealed = seal(keys, 'token', 'dsk-1');
  const scope = scopeOf('20260101', 'r');
  t.is(tokens.open(sealed, 'dsk-1'), 'token');
  t.throws(() => tokens.open(sealed, 'dsk-2'));
  t.throws(() => tokens.signingKey(sealed, 'dsk-2', scope));
  t.throws(() => tokens.open(`${sealed.slice(0, -4)}AAAA`, 'dsk-1'));
});

test('more tokens than are remembered open too', (t) => {
  const tokens = new DiskTokens(keys);
  const sealed = Array.from({ length: EDGE_LIMITS.diskTokensRememberedMax + 2 }, (_, index) =>
    seal(keys, `token-${index}`, 'dsk-1'),
  );
  for (const [index, text] of [...sealed, ...sealed].entries()) {
    t.is(tokens.open(text, 'dsk-1'), `token-${index % sealed.length}`);
  }
});
