import type { Redis } from 'ioredis';
import type { ClusterConfig } from '../settings/cluster-config.ts';
import {
  type ReplicaConfirmation,
  unconfirmed,
  WaitingConfirmation,
} from './replica-confirmation.ts';
import { connectRedis } from './redis.ts';

/** The connection to the directory of one process. */
export interface OpenRedis {
  readonly redis: Redis;
  readonly confirmation: ReplicaConfirmation;
  readonly close: () => void;
}

/** @throws Error when the server spreads keys over several servers, which the directory's scripts do not allow */
async function refuseRedisCluster(redis: Redis): Promise<void> {
  if (!(await redis.info('cluster')).includes('cluster_enabled:1')) return;
  throw new Error(
    'Redis runs as a Redis Cluster (cluster-enabled yes), which Berth cannot use: take a single Redis, or several with Sentinels',
  );
}

/**
 * Connects to Redis.
 * @param onError told of each failure of a connection, which is made anew by itself
 * @throws Error when Redis cannot be reached or is a Redis Cluster
 */
export async function openRedis(
  {
    redis: target,
    confirmingReplicas: replicas,
    region,
  }: Pick<ClusterConfig, 'redis' | 'confirmingReplicas' | 'region'>,
  onError: (error: Error) => void,
): Promise<OpenRedis> {
  const redis = connectRedis(target, onError);
  const waiting = replicas === 0 ? undefined : connectRedis(target, onError);
  const close = (): void => {
    redis.disconnect();
    waiting?.disconnect();
  };
  try {
    await Promise.all([redis.connect(), waiting?.connect()]).catch((cause: unknown) => {
      throw new Error('Redis cannot be reached, see REDIS_URL or REDIS_SENTINELS', { cause });
    });
    await refuseRedisCluster(redis);
  } catch (error) {
    close();
    throw error;
  }
  const confirmation =
    waiting === undefined
      ? unconfirmed
      : new WaitingConfirmation({ redis, waiting }, { region, replicas });
  return { redis, confirmation, close };
}
