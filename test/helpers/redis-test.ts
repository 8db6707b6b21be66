import anyTest, { type TestFn } from 'ava';
import type { Redis } from 'ioredis';
import { startRedis } from './redis.ts';

/**
 * Tests of a file that share one Redis, started before the first and ended after the last of them.
 * @param open makes what they share besides, and puts it into their context
 */
export function redisTest<Extra extends object>(
  open: (redis: Redis) => Extra,
): TestFn<{ readonly redis: Redis } & Extra> {
  const test = anyTest as TestFn<{ readonly redis: Redis } & Extra>;
  let server: AsyncDisposable | undefined;
  test.before(async (t) => {
    const { redis } = (server = await startRedis());
    Object.assign(t.context, { redis, ...open(redis) });
  });
  test.after.always(async () => {
    await server?.[Symbol.asyncDispose]();
  });
  return test;
}
