import assert from 'node:assert';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Redis } from 'ioredis';
import { openDirectory } from '../../shared/directory/directory.ts';
import { connectRedis } from '../../shared/directory/redis.ts';
import { readEnvFile } from '../../scripts/env-file.ts';
import { paths } from '../../scripts/local-paths.ts';
import { ApiClient } from './api.ts';
import { Daemon, type Environment } from './daemon.ts';
import { findLeaks } from './leaks.ts';
import { freePorts } from './ports.ts';
import { waitFor } from './wait.ts';

const root = new URL('../../', import.meta.url).pathname;
const MiB = 1024 ** 2;

const isReady = async (url: string): Promise<boolean> => {
  try {
    return (await fetch(url)).ok;
  } catch {
    return false;
  }
};

async function startDaemon(daemon: Daemon, ready: () => Promise<boolean>): Promise<void> {
  daemon.start();
  await waitFor(`${daemon.name} to be ready`, async () => {
    if (!daemon.isRunning) throw new Error(`${daemon.name} ended: ${await daemon.readLog()}`);
    return ready();
  });
}

/** A whole system of its own: Redis, one control node, one agent; real processes on free ports. */
export class Stack {
  readonly directory: string;
  readonly environment: Environment;
  readonly redis: Daemon;
  readonly control: Daemon;
  readonly agent: Daemon;
  #client: Redis | undefined;

  private constructor(directory: string, environment: Environment) {
    this.directory = directory;
    this.environment = environment;
    const daemon = (name: string, command: string[]): Daemon =>
      new Daemon(name, command, environment, join(directory, `${name}.log`));
    this.redis = daemon('redis', ['redis-server', join(directory, 'redis.conf')]);
    this.control = daemon('control', [process.execPath, join(root, 'control/main.ts')]);
    this.agent = daemon('agent', [process.execPath, join(root, 'agent/main.ts')]);
  }

  /** @param settings environment of control and agent beside what every stack has */
  static async start(settings: Environment = {}): Promise<Stack> {
    const image =
      process.env['DEFAULT_IMAGE_DIR'] ?? (await readEnvFile(paths.config))['DEFAULT_IMAGE_DIR'];
    assert(image !== undefined, 'there is no default image: run ./scripts/setup');
    const directory = await mkdtemp(join(tmpdir(), 'berth-test-'));
    const [redis, control, internal, agent, admin] = await freePorts(5);
    const environment: Environment = {
      REDIS_URL: `redis://127.0.0.1:${redis}`,
      CLUSTER_ID: `cl-${randomBytes(4).toString('hex')}`,
      CLUSTER_SECRET: randomBytes(32).toString('base64url'),
      ENCRYPTION_KEY: randomBytes(32).toString('base64'),
      REGION: 'local-test',
      LOG_LEVEL: 'info',
      CONTROL_PORT: String(control),
      CONTROL_INTERNAL_PORT: String(internal),
      PUBLIC_BASE_URL: `http://127.0.0.1:${control}`,
      AGENT_PORT: String(agent),
      AGENT_ADMIN_PORT: String(admin),
      AGENT_PUBLIC_URL: `http://127.0.0.1:${agent}`,
      AGENT_DATA_DIR: join(directory, 'agent'),
      STORAGE_DIR: join(directory, 'storage'),
      AGENT_CGROUP: `/berth-test-${randomBytes(4).toString('hex')}`,
      DEFAULT_IMAGE_DIR: image,
      DISK_SIZE_BYTES: String(256 * MiB),
      ...settings,
    };
    const config = `bind 127.0.0.1\nport ${redis}\ndir ${directory}\nappendonly yes\nappendfsync always\nsave ""\n`;
    await writeFile(join(directory, 'redis.conf'), config);
    const stack = new Stack(directory, environment);
    try {
      await stack.startRedis();
      await stack.startControl();
      await stack.startAgent();
    } catch (error) {
      await stack.stop();
      throw error;
    }
    return stack;
  }

  get baseUrl(): string {
    return this.environment['PUBLIC_BASE_URL'] ?? '';
  }

  startRedis(): Promise<void> {
    return startDaemon(this.redis, async () => {
      const client = connectRedis(this.environment['REDIS_URL'] ?? '', () => undefined);
      try {
        await client.connect();
        return (await client.ping()) === 'PONG';
      } catch {
        return false;
      } finally {
        client.disconnect();
      }
    });
  }

  startControl(): Promise<void> {
    return startDaemon(this.control, () => isReady(`${this.baseUrl}/readyz`));
  }

  startAgent(): Promise<void> {
    const url = `http://127.0.0.1:${this.environment['AGENT_ADMIN_PORT']}/readyz`;
    return startDaemon(this.agent, () => isReady(url));
  }

  /** A connection to this stack's Redis, closed with the stack. */
  async redisClient(): Promise<Redis> {
    if (this.#client === undefined) {
      this.#client = connectRedis(this.environment['REDIS_URL'] ?? '', () => undefined);
      await this.#client.connect();
    }
    return this.#client;
  }

  async openDirectory(): Promise<ReturnType<typeof openDirectory>> {
    return openDirectory(await this.redisClient(), this.environment['REGION'] ?? '');
  }

  /** A client with a new account's key. */
  async newClient(): Promise<ApiClient> {
    const { accounts, apiKeys } = await this.openDirectory();
    const account = await accounts.create(`account-${randomBytes(4).toString('hex')}`);
    const { token } = await apiKeys.create(account, { name: 'test' });
    return new ApiClient(this.baseUrl, token);
  }

  /** Stops everything and checks that the host is as it was. */
  async stop(): Promise<void> {
    this.#client?.disconnect();
    const codes = [await this.agent.stop(), await this.control.stop()];
    await this.redis.stop();
    const leaks = await findLeaks(this.directory, this.environment['AGENT_CGROUP'] ?? '');
    if (codes.some((code) => code !== 0 && code !== null)) {
      leaks.push(`exit codes ${codes.join(', ')}: ${await this.agent.readLog()}`);
    }
    await rm(this.directory, { recursive: true, force: true });
    assert.deepStrictEqual(leaks, []);
  }
}
