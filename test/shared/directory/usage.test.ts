import { setTimeout as sleep } from 'node:timers/promises';
import type { Redis } from 'ioredis';
import { keys } from '../../../shared/directory/keys.ts';
import { orderedMember } from '../../../shared/directory/page.ts';
import { monthOf, UsageRecords } from '../../../shared/directory/usage.ts';
import { newAccountId, newDiskId } from '../../../shared/ids.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import { redisTest } from '../../helpers/redis-test.ts';

const REGION = 'local-test';
const BYTES = 3_600_000;

const test = redisTest((redis) => ({ usage: new UsageRecords(redis, REGION) }));

/** An account with two disks, one of which was never measured. */
async function newAccount({ redis }: { redis: Redis }): Promise<string> {
  const accountId = newAccountId();
  for (const usedBytes of [String(BYTES), undefined]) {
    const id = newDiskId();
    const member = orderedMember(new Date().toISOString(), id);
    await redis.zadd(keys.disks(REGION, accountId), 0, member);
    await redis.hset(keys.disk(REGION, accountId, id), {
      id,
      ...(usedBytes === undefined ? {} : { usedBytes }),
    });
  }
  return accountId;
}

const read = ({ usage }: { usage: UsageRecords }, accountId: string) =>
  usage.get(accountId, monthOf(Date.now()));

test('what is on disks counts for the time between two measurements, once', async (t) => {
  const { usage } = t.context;
  const accountId = await newAccount(t.context);
  const begunAt = performance.now();
  await usage.addStorage(accountId);
  t.is((await read(t.context, accountId)).storageByteHours, 0);
  await sleep(100);
  await Promise.all(Array.from({ length: 5 }, () => usage.addStorage(accountId)));
  const secondsMax = (performance.now() - begunAt) / 1000;
  const { storageByteHours } = await read(t.context, accountId);
  const perSecond = BYTES / 3600;
  t.true(storageByteHours >= 0.09 * perSecond, String(storageByteHours));
  t.true(storageByteHours <= secondsMax * perSecond + 1, String(storageByteHours));
});

test('a time in which nobody measured does not count', async (t) => {
  const { redis, usage } = t.context;
  const accountId = await newAccount(t.context);
  const longAgo = Date.now() / 1000 - (DIRECTORY_LIMITS.storageMeasuredEveryMs * 4) / 1000;
  await redis.set(keys.usageMeasuredAt(REGION, accountId), longAgo);
  await usage.addStorage(accountId);
  t.is((await read(t.context, accountId)).storageByteHours, 0);
});

test('figures of several nodes and hosts add up', async (t) => {
  const { usage } = t.context;
  const accountId = newAccountId();
  await Promise.all(
    Array.from({ length: 10 }, async () => {
      await usage.addTime(accountId, { vcpuSeconds: 0.25, memoryGibSeconds: 0.5 });
      await usage.addCounts(accountId, { requests: 3, execs: 1 });
    }),
  );
  t.deepEqual(await read(t.context, accountId), {
    ...{ vcpuSeconds: 2.5, memoryGibSeconds: 5, storageByteHours: 0 },
    ...{ requests: 30, execs: 10 },
  });
  t.is((await usage.get(accountId, '2020-01')).requests, 0);
});
