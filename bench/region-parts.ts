import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chooseNodes } from '../agent/control-link/chosen-nodes.ts';
import { type Directory, openDirectory } from '../shared/directory/directory.ts';
import { Daemon, type Environment } from '../test/helpers/daemon.ts';
import { freePorts } from '../test/helpers/ports.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { HostProcess } from './region-host-process.ts';
import { RegionRedis } from './region-redis.ts';
import { controlEnvironment, newRegionSettings, type RegionSettings } from './region-settings.ts';

const root = new URL('../', import.meta.url).pathname;
const SIGNALS = ['SIGINT', 'SIGTERM'] as const;
const START_MS_MAX = 120_000;
/** In memory where there is such a file system: every host syncs its journal at each write. */
const PLACES = ['/dev/shm', tmpdir()];

interface ControlNode {
  readonly daemon: Daemon;
  readonly baseUrl: string;
  readonly internalUrl: string;
}

/** How large a region is. */
export interface RegionSize {
  readonly agents: number;
  readonly controls: number;
  /** How many hosts are to link to a control node by themselves. */
  readonly linkedHosts: number;
  /** Whether Redis is a cluster of three primaries with a replica each, or one server. */
  readonly hasRedisCluster: boolean;
  readonly sandboxesPerAgent: number;
  readonly disksPerAgent: number;
  readonly hostsPerProcess: number;
}

export interface RegionSandbox {
  readonly sandboxId: string;
  readonly key: string;
}

/** Accounts have at most 1,000 sandboxes, and rarely so many. */
const SANDBOXES_PER_ACCOUNT = 250;

/** A Redis, control nodes and many simulated hosts, ended when it is disposed of. */
export class Region implements AsyncDisposable {
  readonly size: RegionSize;
  readonly directory: Directory;
  readonly redis: RegionRedis;
  readonly controls: readonly ControlNode[];
  /** A key of each account. */
  readonly keys: readonly string[];
  readonly #keysByAccount: ReadonlyMap<string, string>;
  readonly #settings: RegionSettings;
  readonly #hosts: readonly HostProcess[];
  readonly #path: string;
  readonly #stack: AsyncDisposableStack;

  private constructor(
    size: RegionSize,
    parts: {
      readonly settings: RegionSettings;
      readonly redis: RegionRedis;
      readonly controls: readonly ControlNode[];
      readonly hosts: readonly HostProcess[];
      readonly keysByAccount: ReadonlyMap<string, string>;
      readonly path: string;
    },
    stack: AsyncDisposableStack,
  ) {
    this.size = size;
    this.redis = parts.redis;
    this.controls = parts.controls;
    this.directory = openDirectory(parts.redis.client, parts.settings.region);
    this.keys = [...parts.keysByAccount.values()];
    this.#keysByAccount = parts.keysByAccount;
    this.#settings = parts.settings;
    this.#hosts = parts.hosts;
    this.#path = parts.path;
    this.#stack = stack;
    for (const signal of SIGNALS) process.once(signal, this.#interrupt);
  }

  /** Starts everything but the hosts. */
  static async open(size: RegionSize): Promise<Region> {
    await using undo = new AsyncDisposableStack();
    const path = await temporaryPlace();
    undo.defer(() => rm(path, { recursive: true, force: true }));
    const redis = undo.use(
      size.hasRedisCluster ? await RegionRedis.startCluster() : await RegionRedis.startOne(path),
    );
    const ports = await freePorts(size.controls * 2);
    const settings = newRegionSettings(redis.target);
    const controls = newControls(path, { ...size, settings, redis: redis.environment, ports });
    undo.defer(async () => void (await Promise.all(controls.map(({ daemon }) => daemon.stop()))));
    const keysByAccount = await newAccounts(openDirectory(redis.client, settings.region), size);
    const hosts: HostProcess[] = [];
    for (let left = size.agents; left > 0; left -= size.hostsPerProcess) {
      hosts.push(undo.use(new HostProcess()));
    }
    const parts = { settings, redis, controls, hosts, keysByAccount, path };
    const region = new Region(size, parts, undo.move());
    await region.startControls();
    return region;
  }

  get hostPids(): readonly number[] {
    return this.#hosts.map(({ pid }) => pid);
  }

  /** Starts the control nodes, without waiting for hosts. */
  async startControls(): Promise<void> {
    for (const { daemon } of this.controls) daemon.start();
    await Promise.all(
      this.controls.map(({ daemon, baseUrl }) =>
        waitFor(
          `${daemon.name} to be ready`,
          async () => {
            if (!daemon.isRunning) throw new Error(`it ended: ${await daemon.readLog()}`);
            return fetch(`${baseUrl}/readyz`).then(
              ({ ok }) => ok,
              () => false,
            );
          },
          START_MS_MAX,
        ),
      ),
    );
  }

  /** At once, as a crash does. */
  async killControls(): Promise<void> {
    await Promise.all(this.controls.map(({ daemon }) => daemon.stop('SIGKILL')));
  }

  /** Opens all hosts, in all of their processes at the same time. */
  async openHosts(): Promise<void> {
    const { agents, hostsPerProcess, sandboxesPerAgent: sandboxes } = this.size;
    const options = { settings: this.#settings, directory: this.#path, sandboxes };
    await Promise.all(
      this.#hosts.map((process, index) => {
        const hosts = Math.min(hostsPerProcess, agents - index * hostsPerProcess);
        return process.ask({ ask: 'open', hosts, options });
      }),
    );
    await this.untilLinked();
  }

  /** Until every control node has every host that links to it by itself. */
  async untilLinked(): Promise<void> {
    await waitFor(
      'the hosts to be linked to the control nodes',
      async () => {
        const [wanted, linked] = await Promise.all([this.#wantedLinks(), this.#links()]);
        return this.controls.every((_, index) => (linked[index] ?? 0) >= (wanted[index] ?? 0));
      },
      START_MS_MAX,
    );
  }

  /** How many hosts are linked to a control node, on average. */
  async linksPerControl(): Promise<number> {
    const links = await this.#links();
    return links.reduce((sum, each) => sum + each, 0) / links.length;
  }

  /** How many hosts are linked to each control node. */
  #links(): Promise<number[]> {
    return Promise.all(this.controls.map(({ internalUrl }) => hostsLinkedTo(internalUrl)));
  }

  /**
   * How many hosts link to each control node by themselves.
   * @returns more when a node is not known yet
   */
  async #wantedLinks(): Promise<number[]> {
    const [nodes, hosts] = await Promise.all([
      this.directory.controlNodes.live(),
      this.directory.hosts.list(),
    ]);
    if (nodes.length < this.controls.length || hosts.length < this.size.agents) {
      return this.controls.map(() => Number.POSITIVE_INFINITY);
    }
    const chosen = hosts.map(({ hostId }) => chooseNodes(hostId, nodes));
    return this.controls.map(({ internalUrl }) => {
      const { port } = new URL(internalUrl);
      const node = nodes.find(({ linkUrl }) => new URL(linkUrl).port === port);
      return chosen.filter((ids) => ids.has(node?.nodeId ?? '')).length;
    });
  }

  /** The hosts make their sandboxes by themselves, all of them at the same time. */
  async populate(): Promise<RegionSandbox[]> {
    const accountIds = [...this.#keysByAccount.keys()];
    const { sandboxesPerAgent: sandboxes } = this.size;
    const made = await Promise.all(
      this.#hosts.map((process) => process.ask({ ask: 'populate', sandboxes, accountIds })),
    );
    return made.flat().map(({ accountId, sandboxId }) => {
      return { sandboxId, key: this.#keysByAccount.get(accountId) ?? '' };
    });
  }

  /** Also an end before its time leaves nothing. */
  readonly #interrupt = (): void => {
    this[Symbol.asyncDispose]().then(
      () => process.exit(1),
      () => process.exit(1),
    );
  };

  /** Ends all hosts in good order, then everything else. */
  async [Symbol.asyncDispose](): Promise<void> {
    for (const signal of SIGNALS) process.off(signal, this.#interrupt);
    await Promise.allSettled(this.#hosts.map((process) => process.ask({ ask: 'close' })));
    await this.#stack.disposeAsync();
  }
}

async function temporaryPlace(): Promise<string> {
  for (const place of PLACES) {
    const made = await mkdtemp(join(place, 'berth-region-')).catch(() => undefined);
    if (made !== undefined) return made;
  }
  throw new Error('no temporary directory can be made');
}

function newControls(
  path: string,
  {
    controls,
    linkedHosts,
    settings,
    redis,
    ports,
  }: RegionSize & {
    readonly settings: RegionSettings;
    readonly redis: Environment;
    readonly ports: readonly number[];
  },
): ControlNode[] {
  const signingKey = randomBytes(32).toString('base64url');
  // The command line of the Procfile.
  const flags = ['--max-semi-space-size=8', '--heap-growing-percent=30'];
  const command = [process.execPath, ...flags, join(root, 'control/main.ts')];
  return Array.from({ length: controls }, (_, index) => {
    const [port = 0, internalPort = 0] = ports.slice(index * 2);
    const environment = {
      ...controlEnvironment(settings, { port, internalPort }, signingKey),
      ...redis,
      CONTROL_LINKED_HOSTS: String(linkedHosts),
      NODE_COMPILE_CACHE: join(root, '.local/compile-cache'),
    };
    const name = `control-${index + 1}`;
    return {
      daemon: new Daemon(name, command, environment, join(path, `${name}.log`)),
      baseUrl: `http://127.0.0.1:${port}`,
      internalUrl: `http://127.0.0.1:${internalPort}`,
    };
  });
}

/** @returns a key of each account, by the account's id */
async function newAccounts(
  { accounts, apiKeys }: Directory,
  { agents, sandboxesPerAgent }: RegionSize,
): Promise<Map<string, string>> {
  const count = Math.max(2, Math.ceil((agents * sandboxesPerAgent) / SANDBOXES_PER_ACCOUNT));
  const keys = new Map<string, string>();
  for (let index = 0; index < count; index += 1) {
    const account = await accounts.create(`account-${index}`);
    keys.set(account.id, (await apiKeys.create(account, { name: 'bench' })).token);
  }
  return keys;
}

async function hostsLinkedTo(internalUrl: string): Promise<number> {
  const text = await fetch(`${internalUrl}/metrics`).then((reply) => reply.text());
  const found = [...text.matchAll(/^berth_linked_hosts\{.*state="ready".*\} (\d+)$/gmu)];
  return Number(found[0]?.[1] ?? 0);
}
