import test from 'ava';
import type { IncomingMessage } from 'node:http';
import { readControlConfig } from '../../../control/config.ts';
import { allowsOrigin, allowsUpgrade, isOrigin } from '../../../shared/http/cross-origin.ts';
import { ORIGIN } from '../../../shared/schemas/patterns.ts';

const origins = ['http://localhost:3000', 'https://app.example.com', 'https://[2001:db8::1]:8443'];

const upgrade = (origin?: string): IncomingMessage =>
  ({ headers: { host: 'agent.test:8710', origin } }) as unknown as IncomingMessage;

test('an origin is what a browser sends, and nothing around it', (t) => {
  for (const text of [...origins, '*']) t.true(isOrigin(text), text);
  for (const text of [
    ...['', 'null', 'app.example.com', 'https://app.example.com/', 'https://app.example.com:443'],
    ...['https://App.example.com', 'https://*.example.com', 'https://user@app.example.com'],
    ...['ftp://app.example.com', 'javascript:alert(1)', 'https://', 'https://a b'],
  ]) {
    t.false(isOrigin(text), text);
  }
});

test('an origin is described with any port', (t) => {
  const described = new RegExp(ORIGIN, 'u');
  for (const text of [...origins, '*', 'http://localhost:65535']) {
    t.true(isOrigin(text), text);
    t.regex(text, described);
  }
  for (const text of ['http://localhost:65536', 'https://app.example.com:443']) {
    t.false(isOrigin(text), text);
    t.notRegex(text, described);
  }
});

test('an origin is allowed only as a whole', (t) => {
  for (const origin of origins) t.true(allowsOrigin(origins, origin));
  for (const origin of [
    'https://app.example.com.evil.test',
    'http://app.example.com',
    'null',
    '',
  ]) {
    t.false(allowsOrigin(origins, origin), origin);
    t.true(allowsOrigin(['*'], origin));
  }
});

test('a WebSocket is for programs, for pages of its own host, and for those allowed', (t) => {
  for (const origin of [undefined, 'https://agent.test:8710', origins[0]]) {
    t.true(allowsUpgrade(upgrade(origin), origins), origin);
  }
  for (const origin of ['http://agent.test', 'https://evil.test', 'null', '']) {
    t.false(allowsUpgrade(upgrade(origin), origins), origin);
  }
});

test('a setting that is no list of origins is refused', (t) => {
  t.throws(() => readControlConfig({ ALLOWED_ORIGINS: 'https://app.example.com/' }), {
    message: /ALLOWED_ORIGINS must be origins such as/u,
  });
});
