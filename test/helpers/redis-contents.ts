import type { Redis } from 'ioredis';

async function valueOf(redis: Redis, key: string): Promise<unknown> {
  switch (await redis.type(key)) {
    case 'string': {
      return redis.get(key);
    }
    case 'hash': {
      return redis.hgetall(key);
    }
    case 'set': {
      return redis.smembers(key);
    }
    case 'zset': {
      return redis.zrange(key, '0', '-1');
    }
    case 'list': {
      return redis.lrange(key, 0, -1);
    }
    case 'stream': {
      return redis.xrange(key, '-', '+');
    }
    default: {
      return undefined;
    }
  }
}

/** Every key of the database with its value, as text to search in. */
export async function dumpRedis(redis: Redis): Promise<string> {
  const names = await redis.keys('*');
  const entries = await Promise.all(
    names.map(async (name) => `${name} ${JSON.stringify(await valueOf(redis, name))}`),
  );
  return entries.join('\n');
}
