import { SpaceAlert } from '../../../shared/directory/space-alert.ts';
import { redisTest } from '../../helpers/redis-test.ts';

const test = redisTest((redis) => ({ alert: new SpaceAlert(redis) }));

test('memory is low when Redis has almost as much as it may', async (t) => {
  const { alert, redis } = t.context;
  t.false(await alert.isMemoryLow());
  const used = Number(/^used_memory:(\d+)/mu.exec(await redis.info('memory'))?.[1]);
  await redis.config('SET', 'maxmemory', Math.round(used * 1.1));
  t.true(await alert.isMemoryLow());
  await redis.config('SET', 'maxmemory', used * 10);
  t.false(await alert.isMemoryLow());
});
