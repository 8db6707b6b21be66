import { randomBytes } from 'node:crypto';
import test from 'ava';
import { SandboxPolicies } from '../../../../agent/sandboxes/holds/sandbox-policies.ts';
import { InMemoryPolicies } from '../../../helpers/in-memory-policies.ts';

const [former, present] = [randomBytes(32), randomBytes(32)];
const transform = { headers: { authorization: 'Bearer secret-of-the-policy' } };
const policy = {
  egress: { default: 'deny' as const, allow: [{ target: 'api.example.com', transform }] },
};

test('a policy that a former key sealed is sealed anew, once, and for its own sandbox only', (t) => {
  const stored = new SandboxPolicies([former], new InMemoryPolicies()).store('box-1', policy);
  t.truthy(stored.networkSealed);
  const policies = new SandboxPolicies([present, former], new InMemoryPolicies());
  const networkSealed = policies.reseal({ id: 'box-1', ...stored });
  t.truthy(networkSealed);
  const row = { id: 'box-1', network: stored.network, networkSealed };
  t.is(policies.reseal(row), undefined);
  const later = new SandboxPolicies([present], new InMemoryPolicies());
  t.deepEqual(later.copy(row, 'box-2').network, stored.network);
  const message = /was sealed with a key that ENCRYPTION_KEY lacks: put it after the others/u;
  t.throws(() => later.reseal({ id: 'box-1', ...stored }), { message });
  t.throws(() => policies.reseal({ ...row, id: 'box-3' }), { message });
  t.is(
    policies.reseal({ id: 'box-4', network: stored.network, networkSealed: undefined }),
    undefined,
  );
});
