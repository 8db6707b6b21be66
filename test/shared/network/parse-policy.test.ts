import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { AppError } from '../../../shared/errors.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { normalizeName } from '../../../shared/network/egress-target.ts';
import { parseNetworkPolicy, redactPolicy } from '../../../shared/network/parse-policy.ts';
import { jsonValues } from '../../helpers/json-values.ts';
import { unicodeText } from '../../helpers/unicode-text.ts';

const allowing = (...allow: unknown[]): unknown => ({ egress: { default: 'deny', allow } });
const brokered = (rule: object): unknown => allowing({ target: 'api.example.com', ...rule });

test('an empty object restricts nothing', (t) => {
  t.deepEqual(parseNetworkPolicy({}), {});
});

test('targets are brought into their normal form, and named once', (t) => {
  const given = ['Example.COM.', 'example.com', '10.1.2.3/8', '192.0.2.1/32', '*.Bücher.example'];
  t.deepEqual(parseNetworkPolicy(allowing(...given, { target: 'Plain.example' })).egress?.allow, [
    'example.com',
    '10.0.0.0/8',
    '192.0.2.1',
    '*.xn--bcher-kva.example',
    'plain.example',
  ]);
});

for (const [what, transform] of Object.entries({
  'without headers': {},
  'with no header': { headers: {} },
})) {
  test(`a transform ${what} leaves a rule as a plain one`, (t) => {
    const url = 'https://hooks.example/';
    const targets = ['a.example', '192.0.2.1'];
    const plain = targets.map((target) => ({ target, transform }));
    const forwarding = { target: 'b.example', transform, forward_url: url };
    t.deepEqual(parseNetworkPolicy(allowing(...plain, forwarding)).egress?.allow, [
      ...targets,
      { target: 'b.example', forward_url: url },
    ]);
  });
}

for (const target of [
  ...['', '*', '*.', '.', 'a..b', '-a.example', 'a-.example', 'exa mple.com', 'a\u0000.example'],
  ...['*.*.example', 'a.*.example', 'ex*mple.com', 'localhost', `${'a'.repeat(64)}.example`],
  ...['example.com:443', 'https://example.com', 'example.com/path', '::1', '2001:db8::/32'],
  ...['256.0.0.1', '01.2.3.4', '1.2.3', '1.2.3.4.5', '0x7f.1', '10.0.0.0/33', '10.0.0.0/08'],
  ...['2130706433', '１.２.３.４', '10.0.0.0/8/8', '10.0.0.0-9'],
]) {
  test(`the target ${JSON.stringify(target.slice(0, 30))} is refused`, (t) => {
    t.throws(() => parseNetworkPolicy(allowing(target)), { code: 'bad_request' });
    t.throws(() => parseNetworkPolicy({ egress: { default: 'allow', deny: [target] } }), {
      code: 'bad_request',
    });
  });
}

for (const [what, policy] of Object.entries({
  'a field besides egress': { ingress: {} },
  'a missing default': { egress: {} },
  'another default': { egress: { default: 'ask' } },
  'an unknown field of egress': { egress: { default: 'deny', allowed: [] } },
  'an unknown field of a rule': brokered({ headers: {} }),
  'an unknown field of a transform': brokered({ transform: { headers: {}, body: '' } }),
  'a rule without a target': allowing({ forward_url: 'https://a.example' }),
  'a rule that is a number': allowing(1),
  'headers for an address': allowing({ target: '192.0.2.1', transform: { headers: { a: 'b' } } }),
  'two rules for one brokered name': allowing('a.example', {
    target: 'A.example',
    transform: { headers: { a: 'b' } },
  }),
  'an http forward_url': brokered({ forward_url: 'http://a.example' }),
  'a forward_url whose normal form is too long': brokered({
    forward_url: `https://a.example/${'é'.repeat(1000)}`,
  }),
  'a forward_url with credentials': brokered({ forward_url: 'https://u:p@a.example' }),
  'a drain pattern with a blank': { egress: { default: 'allow', drain_on_pause: ['a b'] } },
  'too many rules': allowing(
    ...Array.from(
      { length: SCHEMA_LIMITS.networkRulesPerListMax + 1 },
      (_, at) => `a${at}.example`,
    ),
  ),
})) {
  test(`${what} is refused`, (t) => {
    t.throws(() => parseNetworkPolicy(policy), { code: 'bad_request' });
  });
}

for (const name of [
  'Host',
  'transfer-encoding',
  'Content-Length',
  'TE',
  'a b',
  'a\r\nb',
  ':path',
]) {
  test(`a rule cannot set the header ${JSON.stringify(name)}`, (t) => {
    const policy = brokered({ transform: { headers: { [name]: 'value' } } });
    t.throws(() => parseNetworkPolicy(policy), { code: 'bad_request' });
  });
}

for (const value of ['', ' ', 'se\r\ncret', 'secret\n', 'se\0cret', 'secr\u00e9t', '\ud800']) {
  test(`a header cannot have the value ${JSON.stringify(value)}, and no message quotes it`, (t) => {
    const policy = brokered({ transform: { headers: { Authorization: value } } });
    const { message } = t.throws(() => parseNetworkPolicy(policy), { code: 'bad_request' });
    t.false(message.includes('cret'));
  });
}

test('an unknown field is named', (t) => {
  t.throws(() => parseNetworkPolicy({ egress: { default: 'deny', alow: [] } }), {
    message: 'network: egress has the unknown field "alow"',
  });
});

test('any input is either refused, or has a normal form that stays the same', (t) => {
  const text = fc.oneof(
    unicodeText({ maxLength: 40 }),
    fc.domain(),
    fc.ipV4(),
    fc.stringMatching(/^[*a-z0-9./:-]{1,20}$/u),
  );
  const rule = fc.record(
    {
      target: text,
      transform: fc.record({ headers: fc.dictionary(text, text) }, { requiredKeys: [] }),
      forward_url: fc.webUrl(),
    },
    { requiredKeys: ['target'] },
  );
  const policy = fc.record({
    egress: fc.record(
      {
        default: fc.constantFrom('allow', 'deny'),
        allow: fc.array(fc.oneof(text, rule), { maxLength: 3 }),
        deny: fc.array(text, { maxLength: 3 }),
        drain_on_pause: fc.array(text, { maxLength: 3 }),
      },
      { requiredKeys: ['default'] },
    ),
  });
  fc.assert(
    fc.property(fc.oneof(policy, jsonValues), (input) => {
      try {
        const parsed = parseNetworkPolicy(structuredClone(input));
        t.deepEqual(parseNetworkPolicy(structuredClone(parsed)), parsed);
      } catch (error) {
        t.true(error instanceof AppError && error.code === 'bad_request');
      }
    }),
    { numRuns: 1000 },
  );
});

test('a policy is shown without values of headers and without paths of URLs', (t) => {
  const policy = parseNetworkPolicy(
    allowing('a.example', {
      target: '*.api.example',
      transform: { headers: { Authorization: 'Bearer secret' } },
      forward_url: 'https://hooks.example/secret?secret',
    }),
  );
  t.deepEqual(redactPolicy(policy), {
    egress: {
      default: 'deny',
      allow: [
        'a.example',
        {
          target: '*.api.example',
          transform: { headers: { Authorization: null } },
          forward_url: 'https://hooks.example',
        },
      ],
    },
  });
});

test('names compare without regard to case and to the dot of the root', (t) => {
  t.is(normalizeName('API.Example.Com.'), 'api.example.com');
  t.is(normalizeName('..'), undefined);
  t.is(normalizeName('203.0.113.1'), undefined);
});
