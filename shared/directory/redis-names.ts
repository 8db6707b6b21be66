import type { Redis } from 'ioredis';
import Type from 'typebox';
import type { RedisTarget } from '../tls/redis-tls.ts';
import { compile } from '../validate.ts';

const readRole = compile(
  Type.Tuple([
    Type.Literal('master'),
    Type.Unknown(),
    Type.Array(Type.Tuple([Type.String(), Type.String(), Type.String()])),
  ]),
);

/**
 * Tells the names or addresses of every server of Redis: the one that the settings name, or the
 * Sentinels, the primary and its replicas. One that was seen once stays: it may come back.
 */
export function redisNames(redis: Redis, target: RedisTarget): () => Promise<readonly string[]> {
  if (!('sentinels' in target)) return () => Promise.resolve([new URL(target.url).hostname]);
  const seen = new Set(target.sentinels.map(({ host }) => host));
  return async () => {
    try {
      const [, , replicas] = readRole(await redis.role(), 'ROLE');
      for (const [host] of replicas) seen.add(host);
      const { remoteAddress } = redis.stream;
      if (remoteAddress !== undefined) seen.add(remoteAddress);
    } catch {
      // Redis cannot be reached: those seen before are told.
    }
    return [...seen];
  };
}
