import type { RedisOptions } from 'bullmq';
import { Redis } from 'ioredis';
import { backoffMs } from '../backoff.ts';
import { type RedisTarget, redisTlsOptions, type SentinelRedis } from '../tls/redis-tls.ts';
import { watchedConnector } from './primary-watch.ts';

/** Whether the error means that Redis refused, is unreachable, or did not answer in time. */
export function isRedisFailure(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  return (
    error.name === 'ReplyError' ||
    error.name === 'MaxRetriesPerRequestError' ||
    error.name === 'AbortError' ||
    /Connection is closed|Stream isn't writeable|Command timed out|ECONNREFUSED/u.test(
      error.message,
    )
  );
}

/** Whether Redis refused the command or never received it, so that nothing was done. */
export function isRedisRefusal(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  return error.name === 'ReplyError' || error.message.includes("Stream isn't writeable");
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

/** Options that say where Redis is and how it is reached. @throws Error when a certificate cannot be read */
function addressOptions(target: RedisTarget): RedisOptions {
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
 * Opens a connection for the directory. While Redis is unreachable, commands fail at once instead of
 * queueing up, so that callers of the API get 503 and can try again.
 */
export function connectRedis(target: RedisTarget | string, onError: (error: Error) => void): Redis {
  const redis = new Redis({
    ...addressOptions(typeof target === 'string' ? { url: target } : target),
    enableOfflineQueue: false,
    enableAutoPipelining: true,
    maxRetriesPerRequest: 0,
    commandTimeout: 5_000,
    socketTimeout: SILENT_MS_MAX,
    connectTimeout: 2_000,
    lazyConnect: true,
    retryStrategy: reconnectDelayMs,
  });
  redis.on('error', onError);
  return redis;
}

/** Options for connections that BullMQ opens itself. Its workers wait until Redis is back. */
export function queueConnection(target: RedisTarget, options: { blocking: boolean }): RedisOptions {
  return {
    ...addressOptions(target),
    enableOfflineQueue: options.blocking,
    maxRetriesPerRequest: options.blocking ? null : 0,
    ...(options.blocking ? {} : { commandTimeout: 5_000, socketTimeout: SILENT_MS_MAX }),
    connectTimeout: 2_000,
    retryStrategy: reconnectDelayMs,
  };
}
