import type { ClusterConfig } from '../settings/cluster-config.ts';
import type { ClusteredRedis, RedisWithOnePrimary } from '../tls/redis-tls.ts';
import { ClusterConfirmation } from './cluster-confirmation.ts';
import type { RedisClient } from './redis-client.ts';
import {
  type ReplicaConfirmation,
  unconfirmed,
  WaitingConfirmation,
} from './replica-confirmation.ts';
import { connectCluster, connectRedis, IMPATIENT } from './redis.ts';

/** The connection to the directory of one process. */
export interface OpenRedis {
  readonly redis: RedisClient;
  readonly confirmation: ReplicaConfirmation;
  readonly close: () => void;
}

interface Confirmed {
  readonly replicas: number;
  readonly region: string;
}

type OnError = (error: Error) => void;

const unreachable = (cause: unknown): Error =>
  new Error('Redis cannot be reached, see REDIS_URL, REDIS_SENTINELS or REDIS_CLUSTER_NODES', {
    cause,
  });

async function openOne(
  target: RedisWithOnePrimary,
  { replicas, region }: Confirmed,
  onError: OnError,
): Promise<OpenRedis> {
  const redis = connectRedis(target, onError);
  const waiting = replicas === 0 ? undefined : connectRedis(target, onError);
  const close = (): void => {
    redis.disconnect();
    waiting?.disconnect();
  };
  try {
    await Promise.all([redis.connect(), waiting?.connect()]).catch((cause: unknown) => {
      throw unreachable(cause);
    });
    if ((await redis.info('cluster')).includes('cluster_enabled:1')) {
      throw new Error(
        'Redis runs as a Redis Cluster (cluster-enabled yes): name its nodes in REDIS_CLUSTER_NODES',
      );
    }
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

async function openCluster(
  target: ClusteredRedis,
  { replicas }: Confirmed,
  onError: OnError,
): Promise<OpenRedis> {
  let cause: unknown;
  const redis = connectCluster(target, (error) => {
    cause = error;
    onError(error);
  });
  try {
    await redis.open();
  } catch (error) {
    redis.disconnect();
    throw unreachable(cause ?? error);
  }
  if (replicas === 0) {
    return { redis, confirmation: unconfirmed, close: () => redis.disconnect() };
  }
  const confirmation = new ClusterConfirmation({ target, replicas, node: IMPATIENT });
  const close = (): void => {
    redis.disconnect();
    confirmation.close();
  };
  return { redis, confirmation, close };
}

/**
 * Connects to Redis.
 * @param onError told of each failure of a connection, which is made anew by itself
 * @throws Error when Redis cannot be reached, or is a Redis Cluster that was named as a single
 *   Redis
 */
export function openRedis(
  {
    redis: target,
    confirmingReplicas: replicas,
    region,
  }: Pick<ClusterConfig, 'redis' | 'confirmingReplicas' | 'region'>,
  onError: OnError,
): Promise<OpenRedis> {
  return 'nodes' in target
    ? openCluster(target, { replicas, region }, onError)
    : openOne(target, { replicas, region }, onError);
}
