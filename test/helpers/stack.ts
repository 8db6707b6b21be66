import assert from 'node:assert';
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Redis } from 'ioredis';
import { toError } from '../../shared/errors.ts';
import { openDirectory } from '../../shared/directory/directory.ts';
import type { RedisClient } from '../../shared/directory/redis-client.ts';
import { connectCluster, connectDirectory, connectRedis } from '../../shared/directory/redis.ts';
import { readEnvFile } from '../../scripts/env-file.ts';
import { paths as hostPaths } from '../../agent/system/paths.ts';
import { paths } from '../../scripts/local-paths.ts';
import { ApiClient } from './api.ts';
import { Daemon, type Environment } from './daemon.ts';
import { findFaults, findLeaks, forgetImageUse, removeRunDirectories } from './leaks.ts';
import { LoopWatch } from './loops.ts';
import { freePorts } from './ports.ts';
import { findSecrets } from './secrets-in-processes.ts';
import { provideTemplates } from './templates.ts';
import { askWithCertificate } from './internal-port.ts';
import { waitFor } from './wait.ts';
import { readRedisTarget } from '../../shared/settings/cluster-config.ts';
import { RedisSettings } from '../../shared/settings/cluster-settings.ts';
import { type Part, variablesFor } from '../../shared/settings/known-settings.ts';
import { readSettings } from '../../shared/settings/read-settings.ts';
import type { KeyScope } from '../../shared/key-scopes.ts';
import type { RedisTarget } from '../../shared/tls/redis-tls.ts';
import { MiB } from '../../shared/units.ts';

const root = new URL('../../', import.meta.url).pathname;
const loopback = '127.0.0.1';
const procfile = readFileSync(join(root, 'Procfile'), 'utf8');

/** Node's flags of a process, as the Procfile has them. */
const flagsOf = (name: 'control' | 'agent'): string[] =>
  new RegExp(`^${name}: .*\\bnode (-.*) ${name}/`, 'mu').exec(procfile)?.[1]?.split(' ') ?? [];

/** Internal ports that speak TLS ask for a certificate of the cluster. */
const isReady = async (url: string, environment: Environment): Promise<boolean> => {
  try {
    return isOwnTls(url, environment)
      ? (await askWithCertificate(url, environment)) === 200
      : (await fetch(url)).ok;
  } catch {
    return false;
  }
};

const isOwnTls = (url: string, { AGENT_ADMIN_PORT, CLUSTER_TLS_CA }: Environment): boolean =>
  CLUSTER_TLS_CA !== undefined && new URL(url).port === AGENT_ADMIN_PORT;

/** Where a stack's Redis is, for clients of the test. */
const redisTarget = (environment: Environment): RedisTarget =>
  readRedisTarget(readSettings(RedisSettings, environment));

/** Redis asks for certificates where the settings have some. */
const redisPorts = (port: number | undefined, environment: Environment): string[] => {
  const { REDIS_TLS_CA: ca, REDIS_TLS_CERT: cert, REDIS_TLS_KEY: key } = environment;
  if (ca === undefined) return [`port ${port}`];
  const files = [`tls-ca-cert-file ${ca}`, `tls-cert-file ${cert}`, `tls-key-file ${key}`];
  return ['port 0', `tls-port ${port}`, ...files];
};

const scheme = (name: string, tls: string | undefined): string =>
  tls === undefined ? name : `${name}s`;

function firstOf(nodes: readonly StackNode[]): StackNode {
  const [node] = nodes;
  assert(node !== undefined);
  return node;
}

/** @returns their exit codes */
const stopAll = (nodes: readonly StackNode[], signal: NodeJS.Signals): Promise<(number | null)[]> =>
  Promise.all(nodes.map(({ daemon }) => daemon.stop(signal)));

async function startDaemon(daemon: Daemon, ready: () => Promise<boolean>): Promise<void> {
  daemon.start();
  await waitFor(`${daemon.name} to be ready`, async () => {
    if (!daemon.isRunning) throw new Error(`${daemon.name} ended: ${await daemon.readLog()}`);
    return ready();
  });
}

/** A control node or an agent of a stack. */
export class StackNode {
  readonly daemon: Daemon;
  readonly environment: Environment;
  readonly #readyUrl: string;

  constructor(daemon: Daemon, environment: Environment, readyUrl: string) {
    this.daemon = daemon;
    this.environment = environment;
    this.#readyUrl = readyUrl;
  }

  start(): Promise<void> {
    return startDaemon(this.daemon, () => isReady(this.#readyUrl, this.environment));
  }
}

/** So that the first machine of an agent that runs sandboxes need not boot. */
async function provideTemplatesTo(agent: Environment): Promise<void> {
  const { GUEST_DIR, AGENT_DATA_DIR, SANDBOX_DIR } = agent;
  if (GUEST_DIR === undefined || AGENT_DATA_DIR === undefined) return;
  await provideTemplates(hostPaths.templates(SANDBOX_DIR ?? AGENT_DATA_DIR));
}

/**
 * A whole system of its own: Redis, one control node, one agent; real processes on free ports. A
 * test can add further nodes.
 */
export class Stack implements AsyncDisposable {
  /** Started by this process and not stopped yet. */
  static readonly #running = new Set<Stack>();
  readonly directory: string;
  readonly environment: Environment;
  readonly redis: Daemon;
  /** The first of each is started with the stack. */
  readonly controls: StackNode[] = [];
  readonly agents: StackNode[] = [];
  readonly loops: LoopWatch;
  #client: Promise<Redis> | undefined;
  #directoryClient: Promise<RedisClient> | undefined;
  #stopped: Promise<void> | undefined;

  private constructor(directory: string, environment: Environment) {
    this.directory = directory;
    this.environment = environment;
    this.loops = new LoopWatch(directory);
    const command = ['redis-server', join(directory, 'redis.conf')];
    this.redis = new Daemon('redis', command, {}, join(directory, 'redis.log'));
    this.#addControl('control', environment);
    this.#addAgent('agent', environment, []);
  }

  /**
   * @param settings environment of control and agent besides what every stack has
   * @param redisHosts where Redis listens besides the loopback address
   * @param isDetached its processes are not ended by what is typed at the terminal
   */
  static async start(
    settings: Environment = {},
    redisHosts: readonly string[] = [],
    isDetached = false,
  ): Promise<Stack> {
    const image =
      process.env['DEFAULT_IMAGE_DIR'] ?? (await readEnvFile(paths.config))['DEFAULT_IMAGE_DIR'];
    assert(image !== undefined, 'there is no default image: run ./scripts/setup');
    const directory = await mkdtemp(join(tmpdir(), 'berth-test-'));
    await chmod(directory, 0o711); // Users of containers get to theirs through it.
    const [redis, control, internal, agent, admin] = await freePorts(5);
    const password = randomBytes(24).toString('hex');
    const environment: Environment = {
      NODE_COMPILE_CACHE: join(root, '.local/compile-cache'),
      UV_THREADPOOL_SIZE: '32', // The size in the Procfile.
      ...(settings['REDIS_SENTINELS'] === undefined && settings['REDIS_CLUSTER_NODES'] === undefined
        ? {
            REDIS_URL: `${scheme('redis', settings['REDIS_TLS_CA'])}://:${password}@${loopback}:${redis}`,
          }
        : {}),
      CLUSTER_ID: `cl-${randomBytes(4).toString('hex')}`,
      CLUSTER_SECRET: randomBytes(32).toString('base64url'),
      ENCRYPTION_KEY: randomBytes(32).toString('base64'),
      SIGNING_KEYS: randomBytes(32).toString('base64url'),
      REGION: 'local-test',
      LOG_LEVEL: 'info',
      CONTROL_PORT: String(control),
      CONTROL_INTERNAL_PORT: String(internal),
      PUBLIC_BASE_URL: `${scheme('http', settings['CONTROL_TLS_CERT'])}://${settings['CONTROL_HOST'] ?? loopback}:${control}`,
      AGENT_PORT: String(agent),
      AGENT_ADMIN_PORT: String(admin),
      AGENT_PUBLIC_URL: `${scheme('http', settings['AGENT_TLS_CERT'])}://${loopback}:${agent}`,
      AGENT_DATA_DIR: join(directory, 'agent'),
      STORAGE_DIR: join(directory, 'storage'),
      AUDIT_LOG: join(directory, 'audit.log'),
      AGENT_CGROUP: `/berth-test-${randomBytes(4).toString('hex')}`,
      DEFAULT_IMAGE_DIR: image,
      DISK_SIZE_BYTES: String(256 * MiB),
      ...settings,
    };
    const config = [
      `bind ${[loopback, ...redisHosts].join(' ')}`,
      'protected-mode no',
      `requirepass ${password}`,
      ...redisPorts(redis, environment),
      `dir ${directory}`,
      'appendonly yes',
      'appendfsync always',
      'save ""',
    ];
    await writeFile(join(directory, 'redis.conf'), `${config.join('\n')}\n`);
    const stack = new Stack(directory, environment);
    Stack.#running.add(stack);
    for (const daemon of [stack.redis, stack.control, stack.agent]) daemon.isDetached = isDetached;
    try {
      // A Redis that fails over is the test's own.
      if (environment['REDIS_URL'] !== undefined) await stack.startRedis();
      await stack.startControl();
      await provideTemplatesTo(environment);
      await stack.startAgent();
    } catch (error) {
      // A stack that did not start may leave things behind; why it did not is the cause.
      await stack.stop().catch((left: unknown) => {
        const message = `${toError(error).message}\n${String(left)}`;
        throw new Error(message, { cause: error });
      });
      throw error;
    }
    return stack;
  }

  get control(): Daemon {
    return firstOf(this.controls).daemon;
  }

  get agent(): Daemon {
    return firstOf(this.agents).daemon;
  }

  get baseUrl(): string {
    return this.environment['PUBLIC_BASE_URL'] ?? '';
  }

  async startRedis(): Promise<void> {
    await startDaemon(this.redis, async () => {
      const client = connectDirectory(redisTarget(this.environment), () => undefined);
      try {
        await client.connect();
        return (await client.ping()) === 'PONG';
      } catch {
        return false;
      } finally {
        client.disconnect();
      }
    });
    const client = await this.#client;
    if (client === undefined) return;
    // A test's own client queues nothing, so that its first command would fail until it is back.
    await waitFor('the client to be back', () => Promise.resolve(client.status === 'ready'));
  }

  startControl(): Promise<void> {
    return firstOf(this.controls).start();
  }

  startAgent(): Promise<void> {
    return firstOf(this.agents).start();
  }

  /** Another control node, not started yet, with the stack's settings but for those given. */
  async addControl(settings: Environment = {}): Promise<StackNode> {
    const [port, internalPort] = await freePorts(2);
    const host = settings['CONTROL_HOST'] ?? this.environment['CONTROL_HOST'] ?? loopback;
    return this.#addControl(`control-${this.controls.length + 1}`, {
      ...this.environment,
      CONTROL_PORT: String(port),
      CONTROL_INTERNAL_PORT: String(internalPort),
      PUBLIC_BASE_URL: `http://${host}:${port}`,
      ...settings,
    });
  }

  /**
   * Another agent, a host of its own, not started yet, with the stack's settings but for those
   * given.
   * @param within what starts it, with its arguments: the agent's command line follows them
   */
  async addAgent(settings: Environment = {}, within: readonly string[] = []): Promise<StackNode> {
    const [port, adminPort] = await freePorts(2);
    const name = `agent-${this.agents.length + 1}`;
    const environment = {
      ...this.environment,
      AGENT_PORT: String(port),
      AGENT_ADMIN_PORT: String(adminPort),
      AGENT_PUBLIC_URL: `${scheme('http', this.environment['AGENT_TLS_CERT'])}://${settings['AGENT_HOST'] ?? loopback}:${port}`,
      AGENT_DATA_DIR: join(this.directory, name),
      ...settings,
    };
    const node = this.#addAgent(name, environment, within);
    await provideTemplatesTo(environment);
    return node;
  }

  #addControl(name: string, environment: Environment): StackNode {
    const command = [process.execPath, ...flagsOf('control'), join(root, 'control/main.ts')];
    const url = environment['PUBLIC_BASE_URL'] ?? '';
    const node = this.#node('control', { name, command, environment, url });
    this.controls.push(node);
    return node;
  }

  #addAgent(name: string, environment: Environment, within: readonly string[]): StackNode {
    const command = [...within, process.execPath, ...flagsOf('agent'), join(root, 'agent/main.ts')];
    const { AGENT_HOST: host = loopback, AGENT_ADMIN_PORT: port } = environment;
    const url = `${scheme('http', environment['CLUSTER_TLS_CA'])}://${host}:${port}`;
    const node = this.#node('agent', { name, command, environment, url });
    this.agents.push(node);
    return node;
  }

  #node(
    part: Part,
    {
      name,
      command,
      environment,
      url,
    }: { name: string; command: string[]; environment: Environment; url: string },
  ): StackNode {
    const variables = variablesFor(part, environment) as Environment;
    const daemon = new Daemon(name, command, variables, join(this.directory, `${name}.log`));
    return new StackNode(daemon, environment, `${url}/readyz`);
  }

  /** A connection to this stack's Redis, closed with the stack. */
  redisClient(): Promise<Redis> {
    return (this.#client ??= this.#connectRedis());
  }

  async #connectRedis(): Promise<Redis> {
    const target = redisTarget(this.environment);
    assert(!('nodes' in target), 'a Redis Cluster has several servers');
    const client = connectRedis(target, () => undefined);
    await client.connect();
    return client;
  }

  async #connectDirectory(): Promise<RedisClient> {
    const target = redisTarget(this.environment);
    if (!('nodes' in target)) return this.redisClient();
    const client = connectCluster(target, () => undefined);
    await client.open();
    return client;
  }

  async openDirectory(): Promise<ReturnType<typeof openDirectory>> {
    this.#directoryClient ??= this.#connectDirectory();
    return openDirectory(await this.#directoryClient, this.environment['REGION'] ?? '');
  }

  /** A client with a new account's key. */
  async newClient(scopes?: readonly KeyScope[]): Promise<ApiClient> {
    const { accounts, apiKeys } = await this.openDirectory();
    const account = await accounts.create(`account-${randomBytes(4).toString('hex')}`);
    const { token } = await apiKeys.create(account, { name: 'test', scopes });
    return new ApiClient(this.baseUrl, token);
  }

  #readLogs(): Promise<string[]> {
    const nodes = [...this.agents, ...this.controls];
    return Promise.all(nodes.map(({ daemon }) => daemon.readLog().catch(() => '')));
  }

  /** Stops every stack of this process, as far as each can be. */
  static async stopAll(): Promise<void> {
    await Promise.allSettled([...Stack.#running].map((stack) => stack.stop()));
  }

  /**
   * Stops everything, then asserts that nothing is left on the host, that no image had two writers,
   * and that no other process had a secret of the stack.
   */
  stop(): Promise<void> {
    Stack.#running.delete(this);
    return (this.#stopped ??= this.#stop());
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  async #stop(): Promise<void> {
    const leaks = await findSecrets(this.environment);
    (await this.#client?.catch(() => undefined))?.disconnect();
    (await this.#directoryClient?.catch(() => undefined))?.disconnect();
    // Nothing may be left on the host, sandboxes included.
    const agents = await stopAll(this.agents, 'SIGPWR');
    const codes = [...agents, ...(await stopAll(this.controls, 'SIGTERM'))];
    await this.redis.stop();
    leaks.push(...(await findLeaks(this.directory, this.environment['AGENT_CGROUP'] ?? '')));
    leaks.push(...this.loops.stop());
    if (codes.some((code) => code !== 0 && code !== null)) {
      const logs = await Promise.all(this.agents.map(({ daemon }) => daemon.readLog()));
      leaks.push(`exit codes ${codes.join(', ')}: ${logs.join('\n')}`);
    }
    leaks.push(...findFaults(await this.#readLogs()));
    for (const { environment } of this.agents) await forgetImageUse(environment);
    await removeRunDirectories(this.directory);
    await rm(this.directory, { recursive: true, force: true });
    assert.deepStrictEqual(leaks, []);
  }
}
