import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import {
  isKnownToProxy,
  judge,
  mayResolve,
  needsProxy,
  toEgressRules,
} from '../../../shared/network/egress-rules.ts';
import { matchesAddress, parseTarget } from '../../../shared/network/egress-target.ts';
import { parseNetworkPolicy } from '../../../shared/network/parse-policy.ts';

const toNumber = (address: string): number =>
  address.split('.').reduce((sum, octet) => sum * 256 + Number(octet), 0);

const rulesOf = (egress: object) => toEgressRules(parseNetworkPolicy({ egress }));

const naming = (target: string): object => ({ target, transform: { headers: { who: target } } });

test('deny counts before allow, and allow before the default', (t) => {
  const rules = rulesOf({
    default: 'deny',
    allow: ['*.example.com', '192.0.2.0/24'],
    deny: ['bad.example.com', '192.0.2.7'],
  });
  const ruled = (name: string | undefined, address: string): [boolean, string] => {
    const { isAllowed, rule } = judge(rules, name, address);
    return [isAllowed, rule];
  };
  t.deepEqual(ruled('good.example.com', '203.0.113.1'), [true, '*.example.com']);
  t.deepEqual(ruled('bad.example.com', '203.0.113.1'), [false, 'bad.example.com']);
  t.deepEqual(ruled('bad.example.com', '192.0.2.1'), [false, 'bad.example.com']);
  t.deepEqual(ruled('good.example.com', '192.0.2.7'), [false, '192.0.2.7']);
  t.deepEqual(ruled(undefined, '192.0.2.1'), [true, '192.0.2.0/24']);
  t.deepEqual(ruled(undefined, '203.0.113.1'), [false, 'default']);
});

test('a wildcard matches subdomains of any depth, but not the name itself or one that ends so', (t) => {
  const rules = rulesOf({ default: 'deny', allow: ['*.example.com'] });
  const isAllowed = (name: string): boolean => judge(rules, name, '203.0.113.1').isAllowed;
  t.true(isAllowed('a.example.com'));
  t.true(isAllowed('a.b.example.com'));
  t.false(isAllowed('example.com'));
  t.false(isAllowed('badexample.com'));
  t.false(isAllowed('example.com.evil.example'));
});

test('the most specific rule for a name decides what is added to its requests', (t) => {
  const allow = ['*.example.com', '*.b.example.com', 'a.b.example.com'];
  fc.assert(
    fc.property(fc.shuffledSubarray(allow, { minLength: 3 }), (order) => {
      const rules = rulesOf({ default: 'deny', allow: order.map(naming) });
      const who = (name: string) => judge(rules, name, '203.0.113.1').brokering?.headers['who'];
      t.is(who('a.b.example.com'), 'a.b.example.com');
      t.is(who('c.b.example.com'), '*.b.example.com');
      t.is(who('c.example.com'), '*.example.com');
    }),
  );
});

test('a block matches exactly the addresses that have its prefix', (t) => {
  fc.assert(
    fc.property(fc.ipV4(), fc.integer({ min: 0, max: 32 }), fc.ipV4(), (base, bits, address) => {
      const size = 2 ** (32 - bits);
      const wanted = Math.floor(toNumber(base) / size) === Math.floor(toNumber(address) / size);
      t.is(matchesAddress(parseTarget(`${base}/${bits}`, 'rule'), address), wanted);
    }),
  );
});

test('only rules by name, and drains, send connections through the proxy', (t) => {
  t.false(needsProxy(toEgressRules({})));
  t.false(needsProxy(rulesOf({ default: 'deny', allow: ['192.0.2.0/24'], deny: ['192.0.2.7'] })));
  t.true(needsProxy(rulesOf({ default: 'deny', allow: ['example.com'] })));
  t.true(needsProxy(rulesOf({ default: 'allow', deny: ['*.example.com'] })));
  t.true(needsProxy(rulesOf({ default: 'allow', drain_on_pause: ['*'] })));
});

test('where everything is denied, only names that a rule allows are looked up', (t) => {
  const lists = { allow: ['a.test', '*.b.test', '0.0.0.0/0'], deny: ['c.b.test', '*.d.b.test'] };
  const rules = rulesOf({ default: 'deny', ...lists });
  const names = ['a.test', 'x.b.test', 'x.c.b.test', 'd.b.test', '*.b.test', '*.c.b.test'];
  const others = [
    'x.a.test',
    '*.a.test',
    'b.test',
    'c.b.test',
    'x.d.b.test',
    '*.d.b.test',
    'e.test',
  ];
  t.deepEqual(
    [...names, ...others].filter((name) => mayResolve(rules, name)),
    names,
  );
  t.true(isKnownToProxy(rulesOf({ default: 'deny' })));
  for (const egress of [
    { default: 'allow', deny: ['1.1.1.1'] },
    { default: 'deny', dns: 'open' },
  ]) {
    t.true(mayResolve(rulesOf(egress), 'e.test'));
    t.false(isKnownToProxy(rulesOf(egress)));
  }
});
