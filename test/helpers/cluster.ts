import assert from 'node:assert';
import { randomBytes } from 'node:crypto';
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import tls from 'node:tls';
import { paths as hostPaths } from '../../agent/system/paths.ts';
import { paths } from '../../scripts/local-paths.ts';
import type { KeyScope } from '../../shared/key-scopes.ts';
import { MiB } from '../../shared/units.ts';
import { ApiClient } from './api.ts';
import { TestAuthority } from './certificates.ts';
import { ClusterNode } from './cluster-node.ts';
import { ClusterRedis } from './cluster-redis.ts';
import { Daemon, type Environment } from './daemon.ts';
import { askWithCertificate } from './internal-port.ts';
import { findFaults, findLeaks, forgetImageUse, removeRunDirectories } from './leaks.ts';
import { LoopWatch } from './loops.ts';
import { MachineNetwork, type NetworkMachine } from './machine-network.ts';
import { clusterProxy } from './proxies.ts';
import { provideTemplates } from './templates.ts';
import { waitFor } from './wait.ts';

const ANSWERS_WITHIN_MS = 10_000;
const ZONE = 'sbx.localhost';

export interface ClusterOptions {
  readonly controls?: number;
  readonly agents?: number;
  /** Settings besides what every node of the kind has. */
  readonly agentSettings?: Environment;
  readonly controlSettings?: Environment;
  /** An authority that is trusted besides the cluster's own, as while that is replaced. */
  readonly nextAuthority?: TestAuthority;
  /** The sources that all of them begin with. */
  readonly checkout?: string;
  /** Three servers of Redis with Sentinels instead of one. */
  readonly redisFailsOver?: boolean | undefined;
  /** Called when two loop devices stand on one image. */
  readonly onTwoWriters?: (fault: string) => void;
  /** Prepares a host before its agent is installed. @returns further settings of the agent */
  readonly prepareHost?: (cluster: TestCluster, host: HostPlace) => Promise<Environment>;
}

/** Where a host of a cluster is. */
export interface HostPlace {
  readonly machine: NetworkMachine;
  readonly dataDir: string;
}

const isAnswered = async (url: string): Promise<boolean> => {
  try {
    return (await fetch(url, { signal: AbortSignal.timeout(ANSWERS_WITHIN_MS) })).ok;
  } catch {
    return false;
  }
};

/**
 * A cluster as docs/operations.md has it made, each part on a machine of its own
 * (machine-network.ts): Redis, control nodes, agents, and haproxy in front of control. Every
 * connection is encrypted. Services run as their units say, below a directory instead of `/`.
 * The machines share this one's kernel and files, and the storage is a directory of it.
 */
export class TestCluster {
  readonly directory: string;
  readonly network: MachineNetwork;
  readonly authority: TestAuthority;
  readonly controls: ClusterNode[] = [];
  readonly agents: ClusterNode[] = [];
  readonly loops: LoopWatch;
  readonly #options: ClusterOptions;
  readonly #cgroups: string[] = [];
  #redis: ClusterRedis | undefined;
  #proxy: Daemon | undefined;
  #proxyMachine: NetworkMachine | undefined;

  private constructor(
    directory: string,
    network: MachineNetwork,
    authority: TestAuthority,
    options: ClusterOptions,
  ) {
    this.directory = directory;
    this.network = network;
    this.authority = authority;
    this.#options = options;
    this.loops = new LoopWatch(directory, options.onTwoWriters);
  }

  /** The certificates of the process that calls this trust the cluster's authority from then on. */
  static async start(options: ClusterOptions = {}): Promise<TestCluster> {
    const directory = await mkdtemp(join(tmpdir(), 'berth-test-'));
    await chmod(directory, 0o711); // Users of containers get to theirs through it.
    const authority = await TestAuthority.create(basename(directory));
    const trusted = [authority, options.nextAuthority].flatMap((each) => each?.certificate ?? []);
    tls.setDefaultCACertificates([...tls.getCACertificates('default'), ...trusted]);
    const network = await MachineNetwork.open();
    const cluster = new TestCluster(directory, network, authority, options);
    try {
      await mkdir(cluster.#tls);
      await writeFile(cluster.ca, trusted.join('\n'));
      cluster.#redis = await cluster.#startRedis();
      const proxy = await network.addMachine('proxy');
      cluster.#proxyMachine = proxy;
      for (let count = 0; count < (options.controls ?? 2); count += 1) await cluster.addControl();
      await cluster.#startProxy(proxy);
      for (let count = 0; count < (options.agents ?? 3); count += 1) await cluster.addAgent();
    } catch (error) {
      await cluster.stop();
      throw error;
    }
    return cluster;
  }

  /** Certificates (PEM) of the authority of all that this cluster has. */
  get ca(): string {
    return join(this.#tls, 'ca.pem');
  }

  /** Nothing else is written here: nodes watch the directories of their certificates. */
  get #tls(): string {
    return join(this.directory, 'tls');
  }

  /** Where callers find control: haproxy. */
  get baseUrl(): string {
    return `https://${this.#proxyMachine?.address}`;
  }

  get redis(): ClusterRedis {
    assert(this.#redis !== undefined);
    return this.#redis;
  }

  get proxy(): Daemon {
    assert(this.#proxy !== undefined);
    return this.#proxy;
  }

  get #storage(): string {
    return join(this.directory, 'storage');
  }

  get #checkout(): string {
    return this.#options.checkout ?? paths.root;
  }

  /** Runs scripts/admin on the first control node. @returns what it printed, read as JSON */
  async admin<T>(...args: string[]): Promise<T> {
    const [control] = this.controls;
    assert(control !== undefined);
    const settings = await control.settings();
    return JSON.parse(
      await control.script(this.#checkout, 'admin', [...args, '--json'], settings),
    ) as T;
  }

  /** Runs scripts/admin secrets reseal where the storage is mounted. */
  async reseal(): Promise<{ readonly failed?: readonly unknown[] }> {
    const [control] = this.controls;
    assert(control !== undefined);
    const settings = { ...(await control.settings()), STORAGE_DIR: this.#storage };
    const printed = await control.script(this.#checkout, 'admin', ['secrets', 'reseal'], settings);
    return JSON.parse(printed) as { failed?: unknown[] };
  }

  /** A client with a new account's key, who calls through haproxy. */
  async newClient(scopes: readonly KeyScope[] = []): Promise<ApiClient> {
    const name = `account-${randomBytes(4).toString('hex')}`;
    await this.admin('account', 'create', name);
    const wanted = scopes.flatMap((scope) => ['--scope', scope]);
    const { token } = await this.admin<{ token: string }>('key', 'create', name, ...wanted);
    return new ApiClient(this.baseUrl, token);
  }

  /** Starts one more control node; haproxy knows those of the beginning only. */
  async addControl(): Promise<ClusterNode> {
    const machine = await this.network.addMachine(`control-${this.controls.length + 1}`);
    const { address } = machine;
    const url = `https://${address}:8700/readyz`;
    const node = new ClusterNode(machine, 'control', this.directory, () => isAnswered(url));
    const { cert, key } = await this.#issue(machine);
    const [first] = this.controls;
    await node.configure({
      ...this.#nodeTls(cert, key),
      ...(first === undefined ? this.redis.settings : {}),
      ...{ CONTROL_TLS_CERT: cert, CONTROL_TLS_KEY: key, PUBLIC_BASE_URL: this.baseUrl },
      AUDIT_LOG: join(this.directory, `${machine.name}-audit.log`),
      TRUSTED_PROXIES: this.#proxyMachine?.address ?? '',
      ...this.#options.controlSettings,
    });
    const from =
      first === undefined ? [] : ['--cluster', join(first.root, 'etc/berth/cluster.env')];
    await node.script(this.#checkout, 'install', [
      ...['control', '--address', address, '--root', node.root, ...from],
    ]);
    this.controls.push(node);
    await node.start();
    return node;
  }

  /** Starts one more host, which joins with an invitation. */
  async addAgent(settings: Environment = {}): Promise<ClusterNode> {
    const name = `agent-${this.agents.length + 1}`;
    const machine = await this.network.addMachine(name);
    const { address } = machine;
    const isReady = async (node: ClusterNode): Promise<boolean> => {
      const url = `https://${address}:8711/readyz`;
      return (await askWithCertificate(url, await node.settings()).catch(() => 0)) === 200;
    };
    const node = new ClusterNode(machine, 'agent', this.directory, isReady);
    const { cert, key } = await this.#issue(machine, [`*.${ZONE}`]);
    const dataDir = join(this.directory, name);
    const cgroup = `/berth-test-${randomBytes(4).toString('hex')}`;
    this.#cgroups.push(cgroup);
    const own: Environment = {
      ...{ AGENT_DATA_DIR: dataDir, STORAGE_DIR: this.#storage },
      ...{ AGENT_CGROUP: cgroup, DISK_SIZE_BYTES: String(256 * MiB) },
      ...{ AGENT_TLS_CERT: cert, AGENT_TLS_KEY: key, AGENT_PUBLIC_URL: `https://${address}:8710` },
      ...{ INGRESS_TLS_CERT: cert, INGRESS_TLS_KEY: key },
      ...this.#options.agentSettings,
      ...(await this.#options.prepareHost?.(this, { machine, dataDir })),
      ...settings,
    };
    await node.configure(own);
    const { token } = await this.admin<{ token: string }>('host', 'invite');
    await node.script(this.#checkout, 'berth-agent', [
      ...['join', this.baseUrl, token, '--address', address, '--root', node.root],
      ...['--ca', this.ca, '--cert', cert, '--key', key],
    ]);
    if (own['SANDBOX_RUNTIME'] !== 'container')
      await provideTemplates(hostPaths.templates(dataDir));
    this.agents.push(node);
    await node.start();
    return node;
  }

  async startProxy(): Promise<void> {
    this.proxy.start();
    await waitFor('haproxy', async () => {
      if (!this.proxy.isRunning) throw new Error(`haproxy ended: ${await this.proxy.readLog()}`);
      return isAnswered(`${this.baseUrl}/readyz`);
    });
  }

  /** Stops a service in good order and starts it again, until the others have it back. */
  async restart(node: ClusterNode): Promise<void> {
    const isUp = `${node.machine.name} is UP`;
    const countUps = async (): Promise<number> => (await this.proxy.readLog()).split(isUp).length;
    const before = await countUps();
    await node.stop();
    await node.start();
    if (node.role !== 'control') return;
    await waitFor('haproxy to see it', async () => (await countUps()) > before);
  }

  /** Replaces the certificate of each node, while it runs, by one that the authority has signed. */
  async renewCertificates(authority = this.authority): Promise<void> {
    for (const { machine, role } of [...this.controls, ...this.agents]) {
      const names = [machine.address, ...(role === 'agent' ? [`*.${ZONE}`] : [])];
      await authority.issue(this.#tls, machine.name, names);
    }
  }

  /**
   * Stops everything, then asserts that nothing is left.
   * @param endStorage called once the agents have ended
   */
  async stop(endStorage?: () => Promise<void>): Promise<void> {
    const agents = await Promise.all(this.agents.map((node) => node.stop('SIGPWR')));
    await endStorage?.();
    const codes = [...agents, ...(await Promise.all(this.controls.map((node) => node.stop())))];
    await this.#proxy?.stop();
    await this.#redis?.stop();
    const leaks = await this.network.findLeaks();
    await this.network[Symbol.asyncDispose]();
    for (const cgroup of this.#cgroups) leaks.push(...(await findLeaks(this.directory, cgroup)));
    leaks.push(...this.loops.stop());
    const logs = await Promise.all(
      [...this.agents, ...this.controls].map((node) => node.readLog()),
    );
    if (codes.some((code) => code !== 0 && code !== null)) {
      leaks.push(`exit codes ${codes.join(', ')}: ${logs.join('\n')}`);
    }
    leaks.push(...findFaults(logs));
    for (const node of this.agents) await forgetImageUse(await node.settings());
    await removeRunDirectories(this.directory);
    await rm(this.directory, { recursive: true, force: true });
    assert.deepStrictEqual(leaks, []);
  }

  #issue(
    machine: NetworkMachine,
    names: readonly string[] = [],
  ): Promise<{ cert: string; key: string }> {
    return this.authority.issue(this.#tls, machine.name, [machine.address, ...names]);
  }

  #nodeTls(cert: string, key: string): Environment {
    return {
      ...{ CLUSTER_TLS_CERT: cert, CLUSTER_TLS_KEY: key, CLUSTER_TLS_CA: this.ca },
      REDIS_TLS_CA: this.ca,
    };
  }

  #startRedis(): Promise<ClusterRedis> {
    const place = {
      ...{ directory: this.directory, ca: this.ca, checkout: this.#checkout },
      addMachine: (name: string) => this.network.addMachine(name),
      issue: (machine: NetworkMachine) => this.#issue(machine),
    };
    return ClusterRedis.start(place, this.#options.redisFailsOver);
  }

  /** The documented haproxy, with TLS to control too. */
  async #startProxy(machine: NetworkMachine): Promise<void> {
    const { cert, key } = await this.#issue(machine);
    const pem = join(this.directory, 'control.pem');
    await writeFile(pem, `${await readFile(cert, 'utf8')}\n${await readFile(key, 'utf8')}`);
    const file = join(this.directory, 'haproxy.cfg');
    const controls = this.controls.map((node) => node.machine.address);
    const place = { address: machine.address, controls, directory: this.directory, ca: this.ca };
    await writeFile(file, await clusterProxy(place));
    const command = [...machine.within, '/usr/sbin/haproxy', '-db', '-f', file];
    this.#proxy = new Daemon('haproxy', command, {}, join(this.directory, 'haproxy.log'));
    await this.startProxy();
  }
}
