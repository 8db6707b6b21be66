import test from 'ava';
import { isAllowed } from '../../../shared/http/ip-allowlist.ts';

for (const [entry, address, expected] of [
  ['10.0.0.1', '10.0.0.1', true],
  ['10.0.0.1', '::ffff:10.0.0.1', true],
  ['::ffff:10.0.0.1', '10.0.0.1', true],
  ['::ffff:10.0.0.0/104', '10.200.0.1', true],
  ['::ffff:10.0.0.0/104', '11.0.0.1', false],
  ['2001:db8::/32', '2001:db8::7', true],
  ['2001:db8::/32', '10.0.0.1', false],
  ['0.0.0.0/0', '2001:db8::7', false],
] as const) {
  test(`${entry} ${expected ? 'admits' : 'does not admit'} ${address}`, (t) => {
    t.is(isAllowed([entry], address), expected);
  });
}
