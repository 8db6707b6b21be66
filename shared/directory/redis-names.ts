import { Redis } from 'ioredis';
import Type from 'typebox';
import type { RedisTarget } from '../tls/redis-tls.ts';
import { compile } from '../validate.ts';
import type { RedisClient } from './redis-client.ts';

const readRole = compile(
  Type.Tuple([
    Type.Literal('master'),
    Type.Unknown(),
    Type.Array(Type.Tuple([Type.String(), Type.String(), Type.String()])),
  ]),
);

/** The addresses of the primary and its replicas. */
async function askPrimary(redis: RedisClient): Promise<readonly string[]> {
  const [, , replicas] = readRole(await redis.role(), 'ROLE');
  const own = redis instanceof Redis ? redis.stream.remoteAddress : undefined;
  return [...replicas.map(([host]) => host), ...(own === undefined ? [] : [own])];
}

/** The addresses of all nodes of a Redis Cluster, from lines `id host:port@bus,name flags ...`. */
async function askCluster(redis: RedisClient): Promise<readonly string[]> {
  const lines = String(await redis.cluster('NODES')).split('\n');
  return lines.flatMap((line) => {
    const [, host = ''] = /^\S+ (\S+):\d+@/u.exec(line) ?? [];
    return host === '' ? [] : [host];
  });
}

/**
 * Tells the names or addresses of every server of Redis: those that the settings name, and those
 * that Redis itself tells of. One that was seen once stays: it may come back.
 */
export function redisNames(
  redis: RedisClient,
  target: RedisTarget,
): () => Promise<readonly string[]> {
  if ('url' in target) return () => Promise.resolve([new URL(target.url).hostname]);
  const [named, ask] =
    'nodes' in target ? [target.nodes, askCluster] : [target.sentinels, askPrimary];
  const seen = new Set(named.map(({ host }) => host));
  return async () => {
    try {
      for (const host of await ask(redis)) seen.add(host);
    } catch {
      // Redis cannot be reached: those seen before are told.
    }
    return [...seen];
  };
}
