/* Uses of disks are added up and written together; what cannot be written yet is kept. */
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import type { Disks } from '../../../shared/directory/disks.ts';
import { openDirectory } from '../../../shared/directory/directory.ts';
import { newAccountId, newDiskId } from '../../../shared/ids.ts';
import { createLogger } from '../../../shared/log.ts';
import { DiskUses } from '../../../agent/disks/disk-use.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';

const region = 'local-test';
const log = createLogger('test', {});
const accountId = newAccountId();
const scriptCalls = (info: string): number =>
  [...info.matchAll(/cmdstat_eval(?:sha)?:calls=(\d+)/gu)].reduce(
    (sum, [, n]) => sum + Number(n),
    0,
  );

async function makeDisk(disks: Disks): Promise<{ accountId: string; diskId: string }> {
  const diskId = newDiskId();
  await disks.create({
    id: diskId,
    accountId,
    organization: 'organization',
    region,
    name: diskId,
    status: 'available',
    createdAt: new Date().toISOString(),
    allowedIps: [],
    allowedOrigins: [],
    users: [],
    revision: 1,
  });
  return { accountId, diskId };
}

test('a thousand uses are counted exactly in a few writes', async (t) => {
  await using server = await startRedis();
  const { redis } = server;
  const directory = openDirectory(redis, region);
  const ref = await makeDisk(directory.disks);
  const gone = { accountId, diskId: newDiskId() };
  const uses = new DiskUses(directory, log);
  await redis.config('RESETSTAT');
  for (let use = 1; use <= 1000; use += 1) {
    uses.record(ref, 2, async () => use);
    uses.record(gone, 2, async () => use);
    if (use % 100 === 0) await sleep(1);
  }
  await uses.close();
  const entry = await directory.disks.get(accountId, ref.diskId);
  t.like(entry?.usage, { requests: 1000, requestMsTotal: 2000, usedBytes: 1000 });
  t.is(await directory.disks.get(accountId, gone.diskId), undefined);
  const calls = scriptCalls(await redis.info('commandstats'));
  t.true(calls >= 2 && calls <= 20, `${calls} calls`);
});

test('while Redis refuses writes uses are kept, and written when it takes them again', async (t) => {
  await using server = await startRedis();
  const { redis } = server;
  const directory = openDirectory(redis, region);
  const ref = await makeDisk(directory.disks);
  const uses = new DiskUses(directory, log);
  await redis.config('SET', 'min-replicas-to-write', '1');
  await redis.config('RESETSTAT');
  uses.record(ref, 1, async () => 7);
  await waitFor(
    'a write that is refused',
    async () => scriptCalls(await redis.info('commandstats')) > 0,
  );
  uses.record(ref, 1, async () => undefined);
  await redis.config('SET', 'min-replicas-to-write', '0');
  const usage = await waitFor('the uses', async () => {
    const entry = await directory.disks.get(accountId, ref.diskId);
    return entry?.usage.requests === 2 ? entry.usage : undefined;
  });
  t.like(usage, { requests: 2, usedBytes: 7 });
  await uses.close();
});

test('an older use of another host changes neither the size nor the time of the last one', async (t) => {
  await using server = await startRedis();
  const { disks } = openDirectory(server.redis, region);
  const { diskId: id } = await makeDisk(disks);
  const write = (at: string, usedBytes: number | undefined): Promise<void> =>
    disks.recordUses({ accountId, id }, { at, usedBytes, requests: 1, requestMs: 0.6 });
  await write('2026-01-02T00:00:00.000Z', 2);
  await write('2026-01-01T00:00:00.000Z', 1);
  await write('2026-01-03T00:00:00.000Z', undefined);
  t.deepEqual((await disks.get(accountId, id))?.usage, {
    lastAccessed: '2026-01-03T00:00:00.000Z',
    usedBytes: 2,
    requests: 3,
    requestMsTotal: 3,
  });
});
