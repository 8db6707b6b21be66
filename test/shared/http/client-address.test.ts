import test from 'ava';
import { clientAddress } from '../../../shared/http/client-address.ts';
import * as fc from '../../helpers/fast-check.ts';
import { unicodeText } from '../../helpers/unicode-text.ts';

const PROXIES = ['10.0.0.0/8', '127.0.0.1', 'fd00::/8'];

const addressOf = (peer: string | undefined, said: string | undefined, trusted = PROXIES): string =>
  clientAddress(
    {
      socket: { remoteAddress: peer },
      headers: said === undefined ? {} : { 'x-forwarded-for': said },
    },
    trusted,
  );

const is = test.macro({
  exec(t, peer: string, said: string | undefined, expected: string) {
    t.is(addressOf(peer, said), expected);
  },
  title: (_given, peer: string, said: string | undefined, expected: string) =>
    `${peer} that says ${JSON.stringify(said)} stands for ${expected}`,
});

test(is, '192.0.2.1', undefined, '192.0.2.1');
test(is, '192.0.2.1', '198.51.100.1', '192.0.2.1');
test(is, '10.0.0.1', undefined, '10.0.0.1');
test(is, '10.0.0.1', '', '10.0.0.1');
test(is, '10.0.0.1', '198.51.100.1', '198.51.100.1');
test(is, '::ffff:10.0.0.1', '::ffff:198.51.100.1', '198.51.100.1');
test(is, '10.0.0.1', '203.0.113.9, 198.51.100.1', '198.51.100.1');
test(is, '10.0.0.1', '203.0.113.9, 198.51.100.1, 10.0.0.2', '198.51.100.1');
test(is, '10.0.0.1', '10.0.0.3, 10.0.0.2', '10.0.0.3');
test(is, '127.0.0.1', ' 198.51.100.1:4711 ', '198.51.100.1');
test(is, 'fd00::1', '[2001:db8::1]:443', '2001:db8::1');
test(is, '10.0.0.1', '2001:db8::1', '2001:db8::1');
// A word that is no address ends the walk: the last proxy that is known stands for the client.
for (const said of [
  'unknown',
  '_hidden',
  ',',
  '198.51.100.1,',
  '1.2.3',
  '0x7f000001',
  '2130706433',
]) {
  test(is, '10.0.0.1', said, '10.0.0.1');
}
test(is, '10.0.0.1', '198.51.100.1, nonsense, 10.0.0.2', '10.0.0.2');
test(is, '10.0.0.1', `${'198.51.100.1, '.repeat(500)}010.0.0.1`, '10.0.0.1');

test('whatever a caller adds in front of what proxies wrote changes nothing', (t) => {
  fc.assert(
    fc.property(unicodeText(), (forged) => {
      t.is(addressOf('10.0.0.1', `${forged}, 198.51.100.1, 10.0.0.2`), '198.51.100.1');
    }),
  );
});

test('without trusted proxies the header is never read', (t) => {
  fc.assert(
    fc.property(unicodeText(), (said) => t.is(addressOf('127.0.0.1', said, []), '127.0.0.1')),
  );
  t.is(addressOf(undefined, '198.51.100.1', []), '0.0.0.0');
});
