import { keys } from '../../../shared/directory/keys.ts';
import { QueuedDeliveries } from '../../../shared/directory/queued-deliveries.ts';
import { redisTest } from '../../helpers/redis-test.ts';

const REGION = 'local-test';
const BOUNDS = { perAccount: 4, total: 10 };

const { serial: test } = redisTest((redis) => ({
  queued: new QueuedDeliveries(redis, REGION, BOUNDS),
}));

test.beforeEach(async (t) => {
  await t.context.redis.flushdb();
});

test('an account has its own bound, and never more than it leaves for the others', async (t) => {
  const { queued } = t.context;
  t.true(await queued.add('a', ['a1', 'a2', 'a3']));
  t.false(await queued.add('a', ['a4', 'a5']));
  t.true(await queued.add('a', ['a4']));
  t.false(await queued.add('b', ['b1', 'b2', 'b3', 'b4']));
  t.true(await queued.add('b', ['b1', 'b2', 'b3']));
  t.false(await queued.add('c', ['c1', 'c2']));
  t.true(await queued.add('c', ['c1']));
  t.is(await queued.count('a'), 4);
});

test('a delivery that is over makes space, once', async (t) => {
  const { queued } = t.context;
  await queued.add('a', ['a1', 'a2', 'a3', 'a4']);
  await queued.remove('a', ['a1']);
  await queued.remove('a', ['a1']);
  t.false(await queued.add('a', ['a5', 'a6']));
  t.true(await queued.add('a', ['a5']));
});

test('a delivery that nobody has ended counts no more when its time is over', async (t) => {
  const { queued, redis } = t.context;
  await queued.add('a', ['a1', 'a2', 'a3', 'a4']);
  await queued.add('b', ['b1', 'b2', 'b3']);
  for (const [account, id] of [
    ['a', 'a1'],
    ['b', 'b1'],
  ] as const) {
    await redis.zadd(keys.queuedDeliveries(REGION), 1, id);
    await redis.zadd(keys.queuedDeliveriesOf(REGION, account), 1, id);
  }
  t.is(await queued.count('a'), 3);
  t.true(await queued.add('c', ['c1', 'c2']));
});
