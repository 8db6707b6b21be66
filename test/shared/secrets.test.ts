import test from 'ava';
import * as fc from '../helpers/fast-check.ts';
import { randomBytes } from 'node:crypto';
import {
  randomSecret,
  reseal,
  seal,
  sha256,
  signToken,
  toRing,
  tryUnseal,
  unseal,
  verifyToken,
} from '../../shared/secrets.ts';
import { unicodeText } from '../helpers/unicode-text.ts';

const key = randomBytes(32);
const secret = 'a-secret-of-the-cluster-of-32-letters';
const text = fc.string({ unit: 'grapheme' });
const now = Date.parse('2026-01-01T00:00:00.000Z');

test('a sealed text opens again, and sealing it twice gives different texts', (t) => {
  fc.assert(
    fc.property(text, text, (plain, context) => {
      const sealed = seal([key], plain, context);
      t.is(unseal([key], sealed, context), plain);
      t.not(seal([key], plain, context), sealed);
    }),
  );
});

test('a sealed text does not open with another key, another context or a changed bit', (t) => {
  fc.assert(
    fc.property(text, text, text, fc.nat(), (plain, context, other, at) => {
      const sealed = seal([key], plain, context);
      t.throws(() => unseal([randomBytes(32)], sealed, context));
      if (other !== context) t.throws(() => unseal([key], sealed, other));
      const bytes = Buffer.from(sealed, 'base64');
      const bit = at % (bytes.length * 8);
      bytes[bit >> 3] = (bytes[bit >> 3] ?? 0) ^ (1 << (bit & 7));
      t.throws(() => unseal([key], bytes.toString('base64'), context));
    }),
  );
});

test('a text that was never sealed does not open', (t) => {
  fc.assert(
    fc.property(fc.oneof(text, fc.base64String()), (sealed) => {
      t.throws(() => unseal([key], sealed, ''), { instanceOf: Error });
    }),
  );
});

const claims = fc.dictionary(
  fc.string().filter((name) => name !== 'exp' && name !== '__proto__'),
  text,
  { noNullPrototype: true },
);

test('a signed token returns its claims until it expires', (t) => {
  fc.assert(
    fc.property(text, claims, fc.nat(), (purpose, given, ms) => {
      const token = signToken([secret], purpose, given, now + ms);
      t.deepEqual<unknown, unknown>(verifyToken([secret], purpose, token, now), {
        ...given,
        exp: now + ms,
      });
      t.is(verifyToken([secret], purpose, token, now + ms + 1), 'expired');
      t.regex(token, /^[\w-]+\.[\w-]+$/u);
    }),
  );
});

test('a token of another secret or purpose, or changed in any place, is invalid', (t) => {
  fc.assert(
    fc.property(
      claims,
      fc.nat(),
      fc.constantFrom(...'aZ09-_.= é'.split('')),
      (given, at, letter) => {
        const token = signToken([secret], 'purpose', given, now + 1);
        t.is(verifyToken([`${secret}x`], 'purpose', token, now), 'invalid');
        t.is(verifyToken([secret], 'other', token, now), 'invalid');
        const index = at % token.length;
        const changed = token.slice(0, index) + letter + token.slice(index + 1);
        if (changed !== token) t.is(verifyToken([secret], 'purpose', changed, now), 'invalid');
      },
    ),
  );
});

test('any key in the ring verifies a token, expired or not; a removed key does not', (t) => {
  const other = `${secret}-other`;
  const token = signToken([secret], 'p', {}, now);
  t.like(verifyToken([other, secret], 'p', token, now), { exp: now });
  t.is(verifyToken([other, secret], 'p', token, now + 1), 'expired');
  t.is(verifyToken([other], 'p', token, now), 'invalid');
});

test('text that is not a token is invalid and does not throw', (t) => {
  const dotted = fc.array(fc.base64String(), { maxLength: 4 }).map((parts) => parts.join('.'));
  fc.assert(
    fc.property(fc.oneof(unicodeText(), dotted), (token) => {
      t.is(verifyToken([secret], 'purpose', token, now), 'invalid');
    }),
  );
});

test('text cannot be moved between purpose and body', (t) => {
  const token = signToken([secret], 'a', {}, now);
  const [body = '', signature = ''] = token.split('.');
  t.is(verifyToken([secret], 'a\n', `${body}.${signature}`, now), 'invalid');
});

test('secrets are long, differ and suit a URL; hashes are hex', (t) => {
  const secrets = Array.from({ length: 100 }, randomSecret);
  t.is(new Set(secrets).size, 100);
  t.true(secrets.every((value) => /^[\w-]{43}$/u.test(value)));
  t.regex(sha256(''), /^[0-9a-f]{64}$/u);
});

test('what a former key sealed opens until that key is gone, and is sealed anew with the first', (t) => {
  const [former, present] = [randomBytes(32), randomBytes(32)];
  const sealed = seal([former], 'text', 'context');
  t.is(unseal([present, former], sealed, 'context'), 'text');
  t.deepEqual(tryUnseal([present, former], sealed, 'context'), { text: 'text', keyIndex: 1 });
  t.is(tryUnseal([present, former], sealed, 'elsewhere'), undefined);
  t.is(tryUnseal([present], sealed, 'context'), undefined);
  t.throws(() => unseal([present], sealed, 'context'), { message: /another key/u });
  const anew = reseal([present, former], sealed, 'context') ?? '';
  t.is(unseal([present], anew, 'context'), 'text');
  t.is(reseal([present, former], anew, 'context'), undefined);
  t.throws(() => reseal([present], sealed, 'context'), { message: /another key/u });
});

test('a ring has at least one secret', (t) => {
  t.deepEqual([...toRing(['a', 'b'])], ['a', 'b']);
  t.throws(() => toRing([]), { instanceOf: RangeError });
});
