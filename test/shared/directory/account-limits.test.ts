import { AccountQuotas } from '../../../shared/directory/account-quotas.ts';
import {
  AccountLimitSettings,
  type AccountLimits,
} from '../../../shared/directory/account-limits.ts';
import type { ClaimResult } from '../../../shared/directory/named-records.ts';
import { Sandboxes } from '../../../shared/directory/sandboxes.ts';
import { newAccountId, newSandboxId } from '../../../shared/ids.ts';
import { redisTest } from '../../helpers/redis-test.ts';
import { sandboxRecord } from '../../helpers/sandbox-records.ts';
import { waitFor } from '../../helpers/wait.ts';

const LONG_MS = 600_000;
const SHARE = { vcpus: 2, memoryMib: 512 };

interface Context {
  readonly sandboxes: Sandboxes;
  readonly limits: AccountLimitSettings;
}

const test = redisTest<Context>((redis) => ({
  sandboxes: new Sandboxes(redis, 'local-test'),
  limits: new AccountLimitSettings(redis),
}));

async function newAccount({ limits }: Context, max: AccountLimits): Promise<string> {
  const accountId = newAccountId();
  await limits.change(accountId, max);
  return accountId;
}

const claimOf = async (
  { sandboxes }: Context,
  accountId: string,
  { ttlMs = LONG_MS, share = SHARE } = {},
): Promise<ClaimResult> => {
  const sandboxId = newSandboxId();
  return sandboxes.claim({ accountId, sandboxId, name: sandboxId }, ttlMs, share);
};

for (const [limit, max, claimed] of [
  ['vcpus', 7, 3],
  ['memoryMib', 1536, 3],
  ['sandboxes', 4, 4],
] as const) {
  test(`of many claims at once no more succeed than ${limit} allow`, async (t) => {
    const accountId = await newAccount(t.context, { [limit]: max });
    const results = await Promise.all(
      Array.from({ length: 20 }, () => claimOf(t.context, accountId)),
    );
    t.is(results.filter((result) => result === 'claimed').length, claimed);
    const refusals = results.filter((result) => result !== 'claimed');
    const used = { vcpus: 6, memoryMib: 1536, sandboxes: 4 }[limit];
    for (const refusal of refusals) t.deepEqual(refusal, { limit, max, used });
  });
}

test('a claim that lapsed or was released counts no more', async (t) => {
  const { sandboxes } = t.context;
  const accountId = await newAccount(t.context, { vcpus: 2 });
  t.is(await claimOf(t.context, accountId, { ttlMs: 30 }), 'claimed');
  await waitFor('the claim to lapse', async () => {
    return (await claimOf(t.context, accountId, { ttlMs: 30 })) === 'claimed';
  });
  const named = { accountId, sandboxId: newSandboxId(), name: 'released' };
  await waitFor('the other to lapse', async () => {
    return (await sandboxes.claim(named, LONG_MS, SHARE)) === 'claimed';
  });
  t.like(await claimOf(t.context, accountId), { limit: 'vcpus' });
  await sandboxes.releaseClaim(named);
  t.is(await claimOf(t.context, accountId), 'claimed');
});

test('a sandbox counts from its claim until its record is removed, once', async (t) => {
  const { sandboxes } = t.context;
  const accountId = await newAccount(t.context, { vcpus: 4 });
  const named = { accountId, sandboxId: newSandboxId(), name: 'box' };
  t.is(await sandboxes.claim(named, LONG_MS, SHARE), 'claimed');
  const config = { name: 'box', vcpuCount: 2, memSizeMib: 512 };
  await sandboxes.publish(sandboxRecord({ accountId, id: named.sandboxId, config }));
  t.is(await claimOf(t.context, accountId), 'claimed', 'the first is not counted twice');
  t.deepEqual(await claimOf(t.context, accountId), { limit: 'vcpus', max: 4, used: 4 });
  await sandboxes.remove(named);
  t.is(await claimOf(t.context, accountId), 'claimed');
});

test('what callers name cannot change what is counted', async (t) => {
  const { sandboxes } = t.context;
  const accountId = await newAccount(t.context, { vcpus: 10 });
  const config = { name: '"vcpuCount":900,', vcpuCount: 2, memSizeMib: 512 };
  await sandboxes.publish(sandboxRecord({ accountId, id: newSandboxId(), config }));
  t.is(await claimOf(t.context, accountId, { share: { vcpus: 8, memoryMib: 1 } }), 'claimed');
  t.deepEqual(await claimOf(t.context, accountId), { limit: 'vcpus', max: 10, used: 10 });
});

test('limits that are not set bind nobody, and can be taken away', async (t) => {
  const { limits } = t.context;
  const accountId = await newAccount(t.context, {});
  const large = { share: { vcpus: 1000, memoryMib: 1e6 } };
  t.is(await claimOf(t.context, accountId, large), 'claimed');
  await limits.change(accountId, { vcpus: 1, disks: 3 });
  t.like(await claimOf(t.context, accountId), { limit: 'vcpus', max: 1, used: 1000 });
  await limits.change(accountId, { vcpus: null });
  t.deepEqual(await limits.get(accountId), { disks: 3 });
  t.is(await claimOf(t.context, accountId, large), 'claimed');
});

test.serial(
  'requests over the limit are refused for a second, also when the wall clock is set back',
  async (t) => {
    const { redis } = t.context;
    const accountId = await newAccount(t.context, { requestsPerSecond: 1 });
    const quotas = new AccountQuotas(redis, 'local-test');
    const isExceeded = async () => (await quotas.takeRequest(accountId))?.isExceeded === true;
    await waitFor('a refusal', isExceeded);
    const wallClock = Date.now;
    t.teardown(() => {
      Date.now = wallClock;
    });
    Date.now = () => wallClock() - 3_600_000;
    await t.notThrowsAsync(waitFor('the next request', async () => !(await isExceeded())));
  },
);
