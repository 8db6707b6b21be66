/*
 * Checks of the running stack, or of the ports, Redis and public addresses that one would need.
 */
import { createServer } from 'node:net';
import type { Redis } from 'ioredis';
import { connectCluster, connectRedis } from '../../shared/directory/redis.ts';
import { readRedisTarget } from '../../shared/settings/cluster-config.ts';
import { RedisSettings } from '../../shared/settings/cluster-settings.ts';
import { ConfigurationError, readSettings } from '../../shared/settings/read-settings.ts';
import type { RedisTarget } from '../../shared/tls/redis-tls.ts';
import type { Env } from '../env-file.ts';
import { readStackState } from '../stack-state.ts';
import { failed, type Finding, ok } from './finding.ts';

const LOOPBACK = '127.0.0.1';

/** Settings with a port, and the setting with the address that it is at. */
const PORTS = [
  ['REDIS_PORT', undefined],
  ['CONTROL_PORT', 'CONTROL_HOST'],
  ['CONTROL_INTERNAL_PORT', 'CONTROL_HOST'],
  ['AGENT_PORT', 'AGENT_HOST'],
  ['AGENT_ADMIN_PORT', 'AGENT_HOST'],
  ['INGRESS_PORT', 'AGENT_HOST'],
] as const;

/** @returns why it cannot be listened on; undefined when it can */
function tryPort(port: number, host: string): Promise<string | undefined> {
  const server = createServer();
  return new Promise((resolve) => {
    server.once('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
    server.listen({ port, host, exclusive: true }, () => server.close(() => resolve(undefined)));
  });
}

/** Whether what is to listen can. While the stack runs, it has its ports. */
export async function checkPorts(config: Env): Promise<Finding[]> {
  if ((await readStackState()).isRunning)
    return [ok('ports', 'the stack of this checkout has its ports')];
  const found: Finding[] = [];
  for (const [name, hostName] of PORTS) {
    const port = config[name];
    if (port === undefined) continue;
    const why = await tryPort(Number(port), (hostName && config[hostName]) ?? LOOPBACK);
    if (why === undefined) continue;
    const next = `end what listens there, or choose another port: ${name}=… ./scripts/up`;
    found.push(failed('ports', `${name}=${port} cannot be listened on (${why})`, next));
  }
  return found.length > 0 ? found : [ok('ports', 'all ports are free')];
}

/** Settings of Redis without which acknowledged changes could be lost in a crash. */
const DURABLE = [
  ['appendonly', 'yes', 'what was acknowledged is lost when Redis ends'],
  [
    'appendfsync',
    'always',
    'what was acknowledged in the last second is lost when the host crashes',
  ],
  ['maxmemory-policy', 'noeviction', 'Redis may drop records when its memory is full'],
] as const;

const CLOCK_MS_MAX = 2_000;

/** Inspects one server. @returns what is wrong with it */
async function inspectServer(redis: Redis): Promise<Finding[]> {
  const found: Finding[] = [];
  for (const [name, wanted, otherwise] of DURABLE) {
    const [, value = ''] = await redis.config('GET', name);
    if (value === wanted) continue;
    const next = `set ${name} ${wanted} in redis.conf`;
    found.push(failed('redis', `${name} is ${value}: ${otherwise}`, next));
  }
  const persistence = await redis.info('persistence');
  if (!/^aof_last_write_status:ok\r?$/mu.test(persistence)) {
    found.push(failed('redis', 'its last write to the log failed', 'look at its disk and its log'));
  }
  const [seconds] = await redis.time();
  const aheadMs = Math.abs(Date.now() - Number(seconds) * 1_000);
  if (aheadMs > CLOCK_MS_MAX) {
    const apart = `${Math.round(aheadMs / 1_000)} s apart`;
    const message = `the clocks of this host and of Redis are ${apart}`;
    found.push(failed('clock', message, 'synchronize both by NTP'));
  }
  return found;
}

/** Errors of a connection are thrown where it is used. */
const ignore = (): void => undefined;

/** Inspects each primary that the settings lead to. */
async function inspectRedis(target: RedisTarget): Promise<Finding[]> {
  const client = 'nodes' in target ? connectCluster(target, ignore) : connectRedis(target, ignore);
  try {
    await ('nodes' in client ? client.open() : client.connect());
    const primaries = 'nodes' in client ? client.nodes('master') : [client];
    const found = (await Promise.all(primaries.map(inspectServer))).flat();
    const isFine = (name: string): boolean => found.every(({ check }) => check !== name);
    return [
      ...(isFine('redis') ? [ok('redis', 'keeps what it has acknowledged')] : []),
      ...found,
      ...(isFine('clock') ? [ok('clock', 'agrees with the clock of Redis')] : []),
    ];
  } finally {
    client.disconnect();
  }
}

/** Whether Redis is there and keeps what it is told; and whether its clock agrees with ours. */
export async function checkRedis(config: Env): Promise<Finding[]> {
  try {
    return await inspectRedis(readRedisTarget(readSettings(RedisSettings, config)));
  } catch (error) {
    if (error instanceof ConfigurationError) {
      return [failed('redis', error.message, 'fix the configuration, or run ./scripts/setup')];
    }
    if (!(await readStackState()).isRunning && config['REDIS_PORT'] !== undefined) {
      return [ok('redis', 'does not run: ./scripts/up starts it')];
    }
    const message = `cannot be reached: ${error instanceof Error ? error.message : String(error)}`;
    return [
      failed(
        'redis',
        message,
        'start it, or fix REDIS_URL, REDIS_SENTINELS or REDIS_CLUSTER_NODES',
      ),
    ];
  }
}

const ANSWER_MS_MAX = 5_000;

async function reach(what: string, url: string): Promise<Finding> {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(ANSWER_MS_MAX) });
    await response.body?.cancel();
    return ok('addresses', `${what} answers at ${url}`);
  } catch {
    const next = 'open the port, and see that the name leads here';
    return failed('addresses', `${what} does not answer at ${url}`, next);
  }
}

/** Whether control and agent can be reached where callers are sent. */
export async function checkAddresses(config: Env): Promise<Finding[]> {
  if (!(await readStackState()).isRunning && config['CONTROL_PORT'] !== undefined) {
    return [ok('addresses', 'nothing runs: ./scripts/up starts it')];
  }
  const { PUBLIC_BASE_URL: control, AGENT_PUBLIC_URL: agent } = config;
  return Promise.all([
    ...(control === undefined ? [] : [reach('control', `${control}/readyz`)]),
    ...(agent === undefined ? [] : [reach('the agent', agent)]),
  ]);
}
