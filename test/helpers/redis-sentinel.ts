import { writeFile } from 'node:fs/promises';
import type { Redis } from 'ioredis';
import { connectRedis } from '../../shared/directory/redis.ts';
import type { SentinelRedis } from '../../shared/tls/redis-tls.ts';
import { Daemon, type Environment } from './daemon.ts';
import { freePorts } from './ports.ts';
import { temporaryDirectory } from './temporary.ts';
import { waitFor } from './wait.ts';

const NAME = 'berth';
const HOST = '127.0.0.1';
/** After how long the Sentinels take a silent primary for dead. */
const DOWN_AFTER_MS = 1_000;

interface Server {
  readonly daemon: Daemon;
  readonly port: number;
}

/** Asks one server of the group itself, whoever is the primary. */
async function ask<T>(port: number, question: (redis: Redis) => Promise<T>): Promise<T> {
  const redis = connectRedis(`redis://${HOST}:${port}`, () => undefined);
  try {
    await redis.connect();
    return await question(redis);
  } finally {
    redis.disconnect();
  }
}

/** Three servers of Redis, of which one is the primary, and three Sentinels that watch them. */
export class RedisGroup implements AsyncDisposable {
  readonly #servers: readonly Server[];
  readonly #sentinels: readonly Server[];
  readonly #stack: AsyncDisposableStack;

  private constructor(
    servers: readonly Server[],
    sentinels: readonly Server[],
    stack: AsyncDisposableStack,
  ) {
    this.#servers = servers;
    this.#sentinels = sentinels;
    this.#stack = stack;
  }

  static async start(): Promise<RedisGroup> {
    await using undo = new AsyncDisposableStack();
    const { path } = undo.use(await temporaryDirectory());
    const ports = await freePorts(6);
    const [first = 0] = ports;
    const launch = async (
      port: number,
      lines: readonly string[],
      args: readonly string[] = [],
    ): Promise<Server> => {
      const own = `${path}/${port}`;
      const common = [`port ${port}`, `bind ${HOST}`, `dir ${path}`, 'protected-mode no'];
      await writeFile(`${own}.conf`, [...common, ...lines, ''].join('\n'));
      const command = ['redis-server', `${own}.conf`, ...args];
      const daemon = new Daemon(`redis-${port}`, command, {}, `${own}.log`);
      daemon.start();
      undo.defer(async () => {
        await daemon.stop('SIGKILL');
      });
      return { daemon, port };
    };
    const serve = (port: number): Promise<Server> =>
      launch(port, [
        ...[`appendonly yes`, `appenddirname aof-${port}`, `appendfsync always`, `save ""`],
        ...[`dbfilename ${port}.rdb`, 'repl-diskless-sync-delay 0', 'min-replicas-to-write 1'],
        ...(port === first ? [] : [`replicaof ${HOST} ${first}`]),
      ]);
    const servers = await Promise.all(ports.slice(0, 3).map(serve));
    await waitFor('two replicas', () => inSync(first));
    const watch = (port: number): Promise<Server> =>
      launch(
        port,
        [
          `sentinel monitor ${NAME} ${HOST} ${first} 2`,
          `sentinel down-after-milliseconds ${NAME} ${DOWN_AFTER_MS}`,
          `sentinel failover-timeout ${NAME} 5000`,
        ],
        ['--sentinel'],
      );
    const sentinels = await Promise.all(ports.slice(3).map(watch));
    await waitFor('the Sentinels to know each other', () => areAgreed(sentinels));
    return new RedisGroup(servers, sentinels, undo.move());
  }

  /** For control and agents. */
  get settings(): Environment {
    const sentinels = this.#sentinels.map(({ port }) => `${HOST}:${port}`);
    return { REDIS_SENTINELS: sentinels.join(','), REDIS_SENTINEL_NAME: NAME };
  }

  get target(): SentinelRedis {
    return {
      sentinels: this.#sentinels.map(({ port }) => ({ host: HOST, port })),
      ...{ name: NAME, username: undefined, password: undefined },
      ...{ sentinelPassword: undefined, tls: undefined },
    };
  }

  /** The server that the first Sentinel takes for the primary. */
  async primary(): Promise<Server> {
    const [sentinel] = this.#sentinels;
    const address = await ask(sentinel?.port ?? 0, (redis) =>
      redis.call('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', NAME),
    );
    const [, port] = address as [string, string];
    const found = this.#servers.find((server) => server.port === Number(port));
    if (found === undefined) throw new Error(`no server of the group listens at ${port}`);
    return found;
  }

  replicas(primary: Server): readonly Server[] {
    return this.#servers.filter((server) => server !== primary);
  }

  /** Asks one server itself, whoever is the primary. */
  ask<T>({ port }: Server, question: (redis: Redis) => Promise<T>): Promise<T> {
    return ask(port, question);
  }

  /** Resolves once the Sentinels have made another server the primary, and it says so itself. */
  async successor(former: Server): Promise<Server> {
    return waitFor('another primary', async () => {
      const server = await this.primary();
      if (server === former) return false;
      const [role] = (await ask(server.port, (redis) => redis.role())) as [string];
      return role === 'master' && server;
    });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#stack.disposeAsync();
  }
}

async function inSync(port: number): Promise<boolean> {
  const state = await ask(port, (redis) => redis.info('replication')).catch(() => '');
  return (state.match(/state=online/gu) ?? []).length === 2;
}

async function areAgreed(sentinels: readonly Server[]): Promise<boolean> {
  const known = await Promise.all(
    sentinels.map(({ port }) => ask(port, (redis) => redis.info('sentinel')).catch(() => '')),
  );
  return known.every((text) => text.includes('status=ok') && /slaves=2,sentinels=3/u.test(text));
}
