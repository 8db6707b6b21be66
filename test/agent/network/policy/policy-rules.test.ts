/* nft and dnsmasq accept the compiler's output for policies. */
import { randomBytes } from 'node:crypto';
import test from 'ava';
import * as fc from '../../../helpers/fast-check.ts';
import { policyRules } from '../../../../agent/network/policy/policy-rules.ts';
import { resolverCommand } from '../../../../agent/network/policy/resolver-config.ts';
import { run } from '../../../../agent/system/spawn.ts';
import { toEgressRules } from '../../../../shared/network/egress-rules.ts';
import { parseNetworkPolicy } from '../../../../shared/network/parse-policy.ts';

const SURROUNDINGS = {
  ...{ routerAddress: '198.18.128.1', proxiedMark: 1, resolverPort: 5301, namesPort: 3130 },
  ...{ closed: ['127.0.0.0/8'], private: ['10.0.0.0/8'], opened: ['10.1.0.0/16'] },
};
const RESOLVER = { address: '10.255.255.1', port: 5301, upstream: '198.18.128.1', namesPort: 3130 };

const name = fc.stringMatching(/^[a-z]{1,3}(\.[a-z]{1,3}){1,2}$/u);
const target = fc.oneof(
  name,
  name.map((text) => `*.${text}`),
  fc.ipV4(),
  fc.tuple(fc.ipV4(), fc.nat(32)).map(([address, bits]) => `${address}/${bits}`),
);
const policies = fc.record({
  egress: fc.record(
    {
      default: fc.constantFrom('allow', 'deny'),
      allow: fc.array(target, { maxLength: 20 }),
      deny: fc.array(target, { maxLength: 20 }),
      dns: fc.constant('open'),
      drain_on_pause: fc.array(fc.constant('*.example'), { maxLength: 1 }),
    },
    { requiredKeys: ['default', 'allow', 'deny', 'drain_on_pause'] },
  ),
});

test('any policy that is accepted can be loaded in place of any other', async (t) => {
  const namespace = `berth-test-${randomBytes(4).toString('hex')}`;
  await run('ip', ['netns', 'add', namespace]);
  try {
    let former: string[] = [];
    let count = 0;
    await fc.assert(
      fc.asyncProperty(policies, async (input) => {
        const rules = toEgressRules(parseNetworkPolicy(input));
        count += 1;
        const text = policyRules(rules, SURROUNDINGS, { former, marker: `policy_${count}` });
        const nft = [`--net=/run/netns/${namespace}`, '/usr/sbin/nft', '-f', '-'];
        await run('nsenter', nft, { input: text });
        former = [...text.matchAll(/^add set inet berth (\S+)/gmu)].map(([, set = '']) => set);
        const [dnsmasq, ...args] = resolverCommand(rules, RESOLVER);
        await run(dnsmasq, [...args, '--test']);
      }),
      { numRuns: 30 },
    );
    t.true(count >= 30);
  } finally {
    await run('ip', ['netns', 'delete', namespace]);
  }
});

test('each name is listed with the sets of all rules about it, since the longest one counts', (t) => {
  const egress = {
    ...{ default: 'deny', allow: ['a.b.test', '*.b.test', 'c.test'], deny: ['*.a.b.test'] },
    dns: 'open',
  };
  const command = resolverCommand(toEgressRules(parseNetworkPolicy({ egress })), RESOLVER);
  const setsOf = (wanted: string): number | undefined =>
    command.find((each) => each.startsWith(`--nftset=/${wanted}/`))?.split(',').length;
  t.is(setsOf('b.test'), 1);
  t.is(setsOf('a.b.test'), 3, 'its own rule, the wildcard above, and the denied one below');
  t.deepEqual(
    command.filter((each) => each.startsWith('--local=')),
    ['--local=/*.c.test/'],
    'what is below a.b.test is about a wildcard',
  );
});
