import type { RedisOptions } from 'bullmq';
import { Redis } from 'ioredis';
import { backoffMs } from '../backoff.ts';
import {
  type ClusteredRedis,
  type RedisTarget,
  redisTlsOptions,
  type RedisWithOnePrimary,
  type SentinelRedis,
} from '../tls/redis-tls.ts';
import { ClusterClient } from './cluster-client.ts';
import { credentialsOf, slotConnector } from './cluster-connectors.ts';
import { watchedConnector } from './primary-watch.ts';
import type { RedisClient } from './redis-client.ts';

/** Whether the error means that Redis refused, is unreachable, or did not answer in time. */
export function isRedisFailure(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  return (
    isRedisRefusal(error) ||
    error.name === 'MaxRetriesPerRequestError' ||
    error.name === 'AbortError' ||
    /Connection is closed|Command timed out|ECONNREFUSED/u.test(error.message)
  );
}

/** Whether Redis refused the command or never received it, so that nothing was done. */
export function isRedisRefusal(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  // Each node that a command was sent on to has refused it.
  const isRefusal = /Stream isn't writeable|Too many Cluster redirections/u;
  return error.name === 'ReplyError' || isRefusal.test(error.message);
}

const RECONNECT_MS = { min: 100, max: 1_000 } as const;

/** @param attempt counts from 1 */
const reconnectDelayMs = (attempt: number): number => backoffMs(attempt - 1, RECONNECT_MS);

/** Errors of a former primary to clients that still write to it. */
const isDemoted = ({ message }: Error): boolean => /^(?:READONLY|UNBLOCKED) /u.test(message);
/** Connections to a machine that went silent are dropped, and the primary is looked for again. */
const SILENT_MS_MAX = 6_000;
const SENTINEL_MS_MAX = 1_000;

function sentinelOptions(target: SentinelRedis): RedisOptions {
  const { sentinels, name, username, password, sentinelPassword, tls } = target;
  const secure = tls === undefined ? undefined : redisTlsOptions(tls);
  return {
    ...{ sentinels: [...sentinels], name, sentinelCommandTimeout: SENTINEL_MS_MAX },
    ...{ sentinelRetryStrategy: reconnectDelayMs, updateSentinels: false },
    ...(secure === undefined
      ? {}
      : { tls: secure, sentinelTLS: secure, enableTLSForSentinelMode: true }),
    ...(username === undefined ? {} : { username }),
    ...(password === undefined ? {} : { password }),
    ...(sentinelPassword === undefined ? {} : { sentinelPassword }),
    Connector: watchedConnector(target),
    // The client leaves a server that says it is no primary at once; the command itself has failed.
    reconnectOnError: isDemoted,
  };
}

/**
 * Options that say where Redis is and how it is reached.
 * @throws Error when a certificate cannot be read
 */
function addressOptions(target: RedisWithOnePrimary): RedisOptions {
  if ('sentinels' in target) return sentinelOptions(target);
  const { url, tls } = target;
  const { protocol, hostname, port, password, username, pathname } = new URL(url);
  return {
    host: hostname.replace(/^\[(.*)\]$/u, '$1'),
    port: Number(port || '6379'),
    db: Number(pathname.slice(1) || '0'),
    ...(protocol === 'rediss:' ? { tls: redisTlsOptions(tls) } : {}),
    ...(password === '' ? {} : { password: decodeURIComponent(password) }),
    ...(username === '' ? {} : { username: decodeURIComponent(username) }),
  };
}

/**
 * While Redis is unreachable, commands fail at once. One that is never answered ends the
 * connection.
 */
export const IMPATIENT = {
  maxRetriesPerRequest: 0,
  commandTimeout: 5_000,
  socketTimeout: SILENT_MS_MAX,
  connectTimeout: 2_000,
} as const;

/**
 * Opens a connection for the directory. While Redis is unreachable, commands fail at once instead
 * of queueing up, so that callers of the API get 503 and can try again.
 */
export function connectRedis(
  target: RedisWithOnePrimary | string,
  onError: (error: Error) => void,
): Redis {
  const redis = new Redis({
    ...addressOptions(typeof target === 'string' ? { url: target } : target),
    ...IMPATIENT,
    enableOfflineQueue: false,
    enableAutoPipelining: true,
    lazyConnect: true,
    retryStrategy: reconnectDelayMs,
  });
  redis.on('error', onError);
  return redis;
}

/** The same for a Redis Cluster. */
export const connectCluster = (
  target: ClusteredRedis,
  onError: (error: Error) => void,
): ClusterClient => new ClusterClient(target, { node: IMPATIENT, lazyConnect: true, onError });

/** The same for whatever Redis there is. */
export const connectDirectory = (
  target: RedisTarget,
  onError: (error: Error) => void,
): RedisClient =>
  'nodes' in target ? connectCluster(target, onError) : connectRedis(target, onError);

/** BullMQ has a worker wait for 10 s at most before it asks again. */
const SILENT_BLOCKING_MS_MAX = 12_000;
/** Errors of a server of a Redis Cluster that has a slot no more, or is cut off from the others. */
const isElsewhere = /^(?:ASK|CLUSTERDOWN|READONLY|UNBLOCKED) /u;

/**
 * A connection to the primary of one slot. The client leaves a server that says that it is not, and
 * looks for the slot anew; what was refused with `MOVED` is then sent again.
 */
const slotOptions = (target: ClusteredRedis, key: string) => ({
  ...credentialsOf(target),
  Connector: slotConnector(target, key),
  reconnectOnError: ({ message }: Error) =>
    message.startsWith('MOVED ') ? (2 as const) : isElsewhere.test(message),
  socketTimeout: SILENT_BLOCKING_MS_MAX,
});

/**
 * Options for connections that BullMQ opens itself. Its workers wait until Redis is back.
 * @param options.prefix of the queue; all its keys are at one primary, also in a Redis Cluster
 */
export function queueConnection(
  target: RedisTarget,
  { blocking, prefix }: { readonly blocking: boolean; readonly prefix: string },
): RedisOptions {
  return {
    ...('nodes' in target ? slotOptions(target, prefix) : addressOptions(target)),
    enableOfflineQueue: blocking,
    connectTimeout: IMPATIENT.connectTimeout,
    ...(blocking ? { maxRetriesPerRequest: null } : IMPATIENT),
    retryStrategy: reconnectDelayMs,
  };
}

/** A connection that puts jobs into the queues of all hosts. */
export function connectQueues(
  target: RedisTarget,
  onError: (error: Error) => void,
): Redis | ClusterClient {
  if ('nodes' in target) {
    return new ClusterClient(target, { node: IMPATIENT, lazyConnect: false, onError });
  }
  const redis = new Redis(queueConnection(target, { blocking: false, prefix: '' }));
  redis.on('error', onError);
  return redis;
}
