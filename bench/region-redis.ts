import { join } from 'node:path';
import type { Redis } from 'ioredis';
import type { RedisClient } from '../shared/directory/redis-client.ts';
import { connectDirectory, connectRedis } from '../shared/directory/redis.ts';
import type { RedisTarget } from '../shared/tls/redis-tls.ts';
import { Daemon, type Environment } from '../test/helpers/daemon.ts';
import { freePorts } from '../test/helpers/ports.ts';
import { RedisCluster } from '../test/helpers/redis-cluster.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { processorMs, type RedisFigures, redisFigures, redisKeysMiB } from './process-usage.ts';

interface Server {
  readonly pid: number;
  readonly client: Redis;
  /** Whether it has keys of its own: a replica has those of its primary. */
  readonly isPrimary: boolean;
}

const sum = (values: readonly number[]): number => values.reduce((all, each) => all + each, 0);

/** The Redis of a simulated region: one server, or a cluster; ended when it is disposed of. */
export class RegionRedis implements AsyncDisposable {
  readonly target: RedisTarget;
  /** Settings of control nodes. */
  readonly environment: Environment;
  readonly client: RedisClient;
  readonly #servers: readonly Server[];
  readonly #stack: AsyncDisposableStack;

  private constructor(
    redis: Pick<RegionRedis, 'target' | 'environment' | 'client'>,
    servers: readonly Server[],
    stack: AsyncDisposableStack,
  ) {
    this.target = redis.target;
    this.environment = redis.environment;
    this.client = redis.client;
    this.#servers = servers;
    this.#stack = stack;
  }

  /** @param path where it keeps its files */
  static async startOne(path: string): Promise<RegionRedis> {
    await using undo = new AsyncDisposableStack();
    const [port = 0] = await freePorts(1);
    const url = `redis://127.0.0.1:${port}`;
    const daemon = startServer(path, port);
    undo.defer(async () => void (await daemon.stop()));
    const client = await connected(undo, url);
    const server = { pid: daemon.pid, client, isPrimary: true };
    const redis = { target: { url }, environment: { REDIS_URL: url }, client };
    return new RegionRedis(redis, [server], undo.move());
  }

  /** Three primaries, each with a replica. */
  static async startCluster(): Promise<RegionRedis> {
    await using undo = new AsyncDisposableStack();
    const cluster = undo.use(await RedisCluster.start());
    const servers = await Promise.all(
      cluster.nodes.map(async ({ daemon, target }) => {
        const client = await connected(undo, target);
        const [role] = (await client.role()) as [string];
        return { pid: daemon.pid, client, isPrimary: role === 'master' };
      }),
    );
    const client = connectDirectory(cluster.target, () => undefined);
    undo.defer(() => client.disconnect());
    await client.connect();
    const redis = { target: cluster.target, environment: await cluster.settings(), client };
    return new RegionRedis(redis, servers, undo.move());
  }

  /** Processor time that all servers have taken so far. */
  async processorMs(): Promise<number> {
    return sum(await Promise.all(this.#servers.map(({ pid }) => processorMs(pid))));
  }

  /** The figures of all servers together. */
  async figures(): Promise<RedisFigures> {
    const all = await Promise.all(this.#servers.map(({ client }) => redisFigures(client)));
    return {
      usedMiB: sum(all.map(({ usedMiB }) => usedMiB)),
      commands: sum(all.map(({ commands }) => commands)),
      reads: sum(all.map(({ reads }) => reads)),
      clients: sum(all.map(({ clients }) => clients)),
    };
  }

  /** Memory of the keys, each counted once. */
  async keysMiB(): Promise<number> {
    const primaries = this.#servers.filter(({ isPrimary }) => isPrimary);
    return sum(await Promise.all(primaries.map(({ client }) => redisKeysMiB(client))));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}

async function connected(
  undo: AsyncDisposableStack,
  target: Parameters<typeof connectRedis>[0],
): Promise<Redis> {
  const client = connectRedis(target, () => undefined);
  undo.defer(() => client.disconnect());
  await waitFor('Redis', async () => {
    await client.connect().catch(() => undefined);
    return client.status === 'ready';
  });
  return client;
}

function startServer(path: string, port: number): Daemon {
  const options = ['--bind', '127.0.0.1', '--port', String(port), '--dir', path];
  // The settings of set-up.
  const files = ['--save', '', '--appendonly', 'yes', '--appendfsync', 'always'];
  const command = ['redis-server', ...options, ...files];
  const daemon = new Daemon('redis', command, {}, join(path, 'redis.log'));
  daemon.start();
  return daemon;
}
