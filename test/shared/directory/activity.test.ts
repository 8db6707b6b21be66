import { Activity } from '../../../shared/directory/activity.ts';
import { keys } from '../../../shared/directory/keys.ts';
import { newEventId } from '../../../shared/ids.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import type { ActivityEvent, ActivityLevel } from '../../../shared/schemas/activity.ts';
import { redisTest } from '../../helpers/redis-test.ts';

const test = redisTest((redis) => ({ activity: new Activity(redis) }));

const newEvent = (accountId: string, level: ActivityLevel): ActivityEvent => ({
  ...{ accountId, level, eventId: newEventId(), eventType: 'disk.deleted' },
  ...{ createdAt: new Date().toISOString(), details: {} },
});

async function listAll(activity: Activity, accountId: string, limit: number): Promise<string[]> {
  const listed: string[] = [];
  let cursor: string | undefined;
  do {
    const from = cursor === undefined ? {} : { cursor };
    const page = await activity.list(accountId, { limit, ...from });
    listed.push(...page.items.map(({ eventId }) => eventId));
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return listed;
}

test('calls that are refused push out each other, and no change', async (t) => {
  const { activity } = t.context;
  const change = newEvent('acct-1', 'info');
  await activity.record(change);
  const batches =
    DIRECTORY_LIMITS.activityPerAccountMax / DIRECTORY_LIMITS.refusalsPerAccountMax + 1;
  for (let batch = 0; batch < batches; batch += 1) {
    await Promise.all(
      Array.from({ length: DIRECTORY_LIMITS.refusalsPerAccountMax }, () =>
        activity.record(newEvent('acct-1', 'warning')),
      ),
    );
  }
  const listed = await listAll(activity, 'acct-1', SCHEMA_LIMITS.pageSizeMax);
  t.is(listed.at(-1), change.eventId);
  t.true(listed.length > DIRECTORY_LIMITS.refusalsPerAccountMax);
  t.true(listed.length < 2 * DIRECTORY_LIMITS.refusalsPerAccountMax);
});

test('pages have each entry of all streams once, newest first', async (t) => {
  const { activity, redis } = t.context;
  const expected: string[] = [];
  const add = async (key: string, level: ActivityLevel, entryId: string): Promise<void> => {
    const event = newEvent('acct-2', level);
    await redis.xadd(key, entryId, 'event', JSON.stringify(event));
    expected.unshift(event.eventId);
  };
  // Some of them in the same moment, of which each stream has an entry with the same id.
  for (const at of ['9-0', '9-1', '10-0', '11-0', '11-1', '11-2']) {
    if (at !== '10-0') await add(keys.refusals('acct-2'), 'warning', at);
    if (at !== '11-2') await add(keys.deletions('acct-2'), 'info', at);
    if (at !== '11-1') await add(keys.activity('acct-2'), 'info', at);
  }
  for (const limit of [1, 2, 3, 100]) {
    t.deepEqual(await listAll(activity, 'acct-2', limit), expected, `${limit} at a time`);
  }
  const { items } = await activity.list('acct-2', { level: 'warning' });
  t.is(items.length, 5);
});

test('deletions of objects, which any disk token can make, push out no change', async (t) => {
  const { activity, redis } = t.context;
  const deletion = { ...newEvent('acct-3', 'info'), eventType: 'disk.objects_deleted' } as const;
  await activity.record(newEvent('acct-3', 'info'));
  await activity.record(deletion);
  t.is(await redis.xlen(keys.activity('acct-3')), 1);
  t.is((await listAll(activity, 'acct-3', 10)).length, 2);
});
