import { keys } from '../../../shared/directory/keys.ts';
import { type NamedSandbox, Sandboxes } from '../../../shared/directory/sandboxes.ts';
import { newAccountId, newSandboxId } from '../../../shared/ids.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import { redisTest } from '../../helpers/redis-test.ts';
import { sandboxRecord } from '../../helpers/sandbox-records.ts';
import { waitFor } from '../../helpers/wait.ts';

const REGION = 'local-test';
const LONG_MS = 600_000;

const test = redisTest((redis) => ({ sandboxes: new Sandboxes(redis, REGION) }));

const draft = (accountId = newAccountId(), name = 'box'): NamedSandbox => ({
  accountId,
  sandboxId: newSandboxId(),
  name,
});

/** The record that the owner publishes for a draft. */
const recordOf = (
  { accountId, sandboxId, name }: NamedSandbox,
  changes: Partial<SandboxRecord> = {},
): SandboxRecord => sandboxRecord({ ...changes, accountId, id: sandboxId, config: { name } });

test('one of many concurrent claims to a name succeeds', async (t) => {
  const { sandboxes } = t.context;
  const accountId = newAccountId();
  const results = await Promise.all(
    Array.from({ length: 20 }, () => sandboxes.claim(draft(accountId), LONG_MS)),
  );
  t.is(results.filter((result) => result === 'claimed').length, 1);
  t.is(results.filter((result) => result === 'name_claimed').length, 19);
});

test('accounts do not share names', async (t) => {
  const { sandboxes } = t.context;
  t.is(await sandboxes.claim(draft(), LONG_MS), 'claimed');
  t.is(await sandboxes.claim(draft(), LONG_MS), 'claimed');
});

test('the holder of a claim can repeat it', async (t) => {
  const mine = draft();
  t.is(await t.context.sandboxes.claim(mine, LONG_MS), 'claimed');
  t.is(await t.context.sandboxes.claim(mine, LONG_MS), 'claimed');
});

test('a claim that was not confirmed lapses', async (t) => {
  const { sandboxes } = t.context;
  const first = draft();
  t.is(await sandboxes.claim(first, 30), 'claimed');
  await waitFor('the claim to lapse', async () => {
    return (await sandboxes.claim(draft(first.accountId), LONG_MS)) === 'claimed';
  });
});

test('a claim is invisible until the owner publishes', async (t) => {
  const { sandboxes } = t.context;
  const mine = draft();
  await sandboxes.claim(mine, LONG_MS);
  t.is(await sandboxes.get(mine.accountId, mine.sandboxId), undefined);
  t.deepEqual(await sandboxes.list(mine.accountId), []);
  const record = recordOf(mine);
  t.true(await sandboxes.publish(record));
  t.deepEqual(await sandboxes.get(mine.accountId, mine.sandboxId), record);
  t.deepEqual(await sandboxes.list(mine.accountId), [record]);
});

test('releasing a claim frees its name', async (t) => {
  const { sandboxes } = t.context;
  const mine = draft();
  await sandboxes.claim(mine, LONG_MS);
  await sandboxes.releaseClaim(draft(mine.accountId)); // Not the holder of the claim: nothing happens.
  t.is(await sandboxes.claim(draft(mine.accountId), LONG_MS), 'name_claimed');
  await sandboxes.releaseClaim(mine);
  t.is(await sandboxes.claim(draft(mine.accountId), LONG_MS), 'claimed');
});

test('releasing a claim does not remove a sandbox that was published by now', async (t) => {
  const { sandboxes } = t.context;
  const mine = draft();
  await sandboxes.claim(mine, LONG_MS);
  await sandboxes.publish(recordOf(mine));
  await sandboxes.releaseClaim(mine);
  t.truthy(await sandboxes.get(mine.accountId, mine.sandboxId));
  t.is(await sandboxes.claim(draft(mine.accountId), LONG_MS), 'name_taken');
});

test('claims count against the limit of the account', async (t) => {
  const { sandboxes, redis } = t.context;
  const accountId = newAccountId();
  const key = keys.sandboxes(REGION, accountId);
  const others = Array.from({ length: DIRECTORY_LIMITS.sandboxesPerAccountMax - 1 }, newSandboxId);
  await redis.hset(key, Object.fromEntries(others.map((id) => [id, '{}'])));
  const results = await Promise.all(
    ['a', 'b', 'c'].map((name) => sandboxes.claim(draft(accountId, name), LONG_MS)),
  );
  t.deepEqual(results.map(String).toSorted(), ['claimed', 'limit', 'limit']);
});

test('the newest revision wins in whatever order they are published', async (t) => {
  const { sandboxes } = t.context;
  const mine = draft();
  const revisions = [1, 2, 10, 9].map((revision) =>
    recordOf(mine, { revision, state: revision === 10 ? 'running' : 'stopped' }),
  );
  for (const record of revisions) t.true(await sandboxes.publish(record));
  t.like(await sandboxes.get(mine.accountId, mine.sandboxId), { revision: 10, state: 'running' });
});

test('removing a sandbox frees its name', async (t) => {
  const { sandboxes } = t.context;
  const mine = draft();
  await sandboxes.publish(recordOf(mine));
  await sandboxes.remove(mine);
  await sandboxes.remove(mine);
  t.is(await sandboxes.get(mine.accountId, mine.sandboxId), undefined);
  t.deepEqual(await sandboxes.list(mine.accountId), []);
  t.is(await sandboxes.claim(draft(mine.accountId), LONG_MS), 'claimed');
});

test('removing a sandbox does not free a name that another one has', async (t) => {
  const { sandboxes } = t.context;
  const holder = draft();
  const other = draft(holder.accountId);
  await sandboxes.publish(recordOf(holder));
  t.false(await sandboxes.publish(recordOf(other)));
  await sandboxes.remove(other);
  t.is(await sandboxes.claim(draft(holder.accountId), LONG_MS), 'name_taken');
  const claimed = draft(holder.accountId, 'claimed');
  await sandboxes.claim(claimed, LONG_MS);
  await sandboxes.remove(draft(holder.accountId, 'claimed'));
  t.is(await sandboxes.claim(draft(holder.accountId, 'claimed'), LONG_MS), 'name_claimed');
});

test('after Redis was emptied, publishing restores records and names', async (t) => {
  const { sandboxes, redis } = t.context;
  const accountId = newAccountId();
  const records = ['a', 'b', 'c'].map((name) => recordOf(draft(accountId, name), { revision: 7 }));
  for (const record of records) await sandboxes.publish(record);
  const before = await sandboxes.list(accountId);
  await redis.del(
    keys.sandboxes(REGION, accountId),
    keys.sandboxNames(REGION, accountId),
    keys.sandboxClaims(REGION, accountId),
  );
  t.deepEqual(await sandboxes.list(accountId), []);
  for (const record of records) t.true(await sandboxes.publish(record));
  t.deepEqual(await sandboxes.list(accountId), before);
  t.is(await sandboxes.claim(draft(accountId, 'b'), LONG_MS), 'name_taken');
});

test('a published sandbox takes its name from a claim, but not from another sandbox', async (t) => {
  const { sandboxes } = t.context;
  const old = draft();
  const claimed = draft(old.accountId);
  await sandboxes.claim(claimed, LONG_MS);
  t.true(await sandboxes.publish(recordOf(old)));
  t.false(await sandboxes.publish(recordOf(claimed)));
  t.false(await sandboxes.publish(recordOf(claimed, { revision: 2 })));
  t.true(await sandboxes.publish(recordOf(old, { revision: 2 })));
});

test('a sandbox is found by its name from its publication to its removal', async (t) => {
  const { sandboxes } = t.context;
  const mine = draft();
  const { accountId, name } = mine;
  t.is(await sandboxes.claim(mine, 60_000), 'claimed');
  t.is(await sandboxes.find(accountId, name), undefined);
  const record = recordOf(mine);
  await sandboxes.publish(record);
  t.deepEqual(await sandboxes.find(accountId, name), record);
  t.is(await sandboxes.find(newAccountId(), name), undefined);
  await sandboxes.remove(mine);
  t.is(await sandboxes.find(accountId, name), undefined);
});

test('the list is ordered by age, then by id', async (t) => {
  const { sandboxes } = t.context;
  const accountId = newAccountId();
  const at = (second: number, name: string): SandboxRecord =>
    recordOf(draft(accountId, name), { createdAt: `2026-11-21T12:00:0${second}.000Z` });
  const records = [at(1, 'a'), at(2, 'b'), at(2, 'c'), at(3, 'd')];
  for (const record of records.toReversed()) await sandboxes.publish(record);
  const expected = records.toSorted((a, b) =>
    `${a.createdAt} ${a.id}`.localeCompare(`${b.createdAt} ${b.id}`),
  );
  t.deepEqual(await sandboxes.list(accountId), expected);
});

for (const text of ['{broken', 'null', '[]', '{}', '{"revision":"x"}']) {
  test(`an unreadable record is an error until the sandbox is published again: ${text}`, async (t) => {
    const { sandboxes, redis } = t.context;
    const mine = draft();
    await redis.hset(keys.sandboxes(REGION, mine.accountId), mine.sandboxId, text);
    const expected = { name: 'Error', message: /cannot be read/u };
    await t.throwsAsync(sandboxes.get(mine.accountId, mine.sandboxId), expected);
    await t.throwsAsync(sandboxes.list(mine.accountId), expected);
    t.true(await sandboxes.publish(recordOf(mine)));
    t.is((await sandboxes.get(mine.accountId, mine.sandboxId))?.id, mine.sandboxId);
  });
}
