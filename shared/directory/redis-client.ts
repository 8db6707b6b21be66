import type { Redis, RedisCommander } from 'ioredis';

/** A client as the directory needs it: it leads to one server, or to a Redis Cluster. */
export type RedisClient = RedisCommander<{ type: 'default'; mapping: 'resp2' }> &
  Pick<Redis, 'connect' | 'disconnect' | 'multi' | 'pipeline'>;
