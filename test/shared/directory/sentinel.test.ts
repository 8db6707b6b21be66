import test from 'ava';
import { connectRedis } from '../../../shared/directory/redis.ts';
import { RedisGroup } from '../../helpers/redis-sentinel.ts';
import { waitFor } from '../../helpers/wait.ts';

for (const signal of ['SIGKILL', 'SIGSTOP'] as const) {
  test(`a connection leaves a primary that got ${signal} and finds the next`, async (t) => {
    await using group = await RedisGroup.start();
    const redis = connectRedis(group.target, () => undefined);
    try {
      await redis.connect();
      await redis.set('key', 'former');
      await redis.wait(2, 5_000);
      const former = await group.primary();
      process.kill(former.daemon.pid, signal);
      const next = await group.successor(former);
      await waitFor('writes to be taken again', () =>
        redis.set('key', 'next').then(
          () => true,
          () => false,
        ),
      );
      t.is(redis.stream.remotePort, next.port);
      if (signal === 'SIGKILL') return;
      process.kill(former.daemon.pid, 'SIGCONT');
      const stale = connectRedis(`redis://127.0.0.1:${former.port}`, () => undefined);
      await waitFor('the former primary to follow', async () => {
        await stale.connect().catch(() => undefined);
        return (await stale.get('key').catch(() => null)) === 'next';
      });
      stale.disconnect();
      await redis.set('key', 'again');
      t.is(redis.stream.remotePort, next.port);
    } finally {
      redis.disconnect();
    }
  });
}
