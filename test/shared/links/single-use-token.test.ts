import test from 'ava';
import { LIMITS } from '../../../shared/limits.ts';
import { signToken } from '../../../shared/secrets.ts';
import { signOnce, SingleUseTokens } from '../../../shared/links/single-use-token.ts';

const SECRET = 'secret-of-a-cluster';

test('a token returns its claims once', (t) => {
  const tokens = new SingleUseTokens([SECRET]);
  const token = signOnce([SECRET], 'test', { a: 'b' });
  t.like(tokens.read('test', token), { a: 'b' });
  t.is(tokens.read('test', token), 'used');
  t.like(tokens.read('test', signOnce([SECRET], 'test', { a: 'b' })), { a: 'b' });
});

test('a token of another purpose or cluster, or without a nonce, is refused', (t) => {
  const tokens = new SingleUseTokens([SECRET]);
  const soon = Date.now() + LIMITS.partTokenTtlMs;
  for (const token of [
    signOnce([SECRET], 'other', {}),
    signOnce([`${SECRET}x`], 'test', {}),
    signToken([SECRET], 'test', {}, soon),
    signToken([SECRET], 'test', { nonce: 'n' }, soon + 3 * LIMITS.partTokenTtlMs),
    '',
    '.',
  ]) {
    t.is(tokens.read('test', token), 'invalid', token);
  }
});

test('a token from before the receiver started is refused, because it may have been used', (t) => {
  const issuedAt = Date.now() - 1000;
  const old = signToken([SECRET], 'test', { nonce: 'n' }, issuedAt + LIMITS.partTokenTtlMs);
  t.is(new SingleUseTokens([SECRET]).read('test', old), 'expired');
});

test.serial('a wall clock that is set back makes no token older than its receiver', (t) => {
  const wallClock = Date.now;
  t.teardown(() => {
    Date.now = wallClock;
  });
  const before = signToken([SECRET], 'test', { nonce: 'n' }, wallClock() + 4_000);
  Date.now = () => wallClock() + 3_600_000;
  const tokens = new SingleUseTokens([SECRET]);
  Date.now = wallClock;
  const token = signOnce([SECRET], 'test', { a: 'b' });
  t.like(tokens.read('test', token), { a: 'b' });
  t.is(tokens.read('test', token), 'used');
  t.is(tokens.read('test', before), 'expired');
});
