import { copyFile, mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { toError } from '../../shared/errors.ts';
import { MiB } from '../../shared/units.ts';
import type { ApiClient } from '../helpers/api.ts';
import { CephFs } from '../helpers/ceph-fs.ts';
import { writeFence } from '../helpers/ceph-hosts.ts';
import { TestCluster } from '../helpers/cluster.ts';
import type { ClusterNode } from '../helpers/cluster-node.ts';
import type { Daemon } from '../helpers/daemon.ts';
import type { NetworkMachine } from '../helpers/machine-network.ts';
import { runsMachines, sandboxSettings } from '../helpers/sandboxes.ts';
import type { Findings } from './findings.ts';
import { injectIntoMachines } from './machine-faults.ts';
import {
  MachineHost,
  mountHost,
  type MountedHost,
  sandboxesOf,
  storageOf,
} from './machine-host.ts';
import {
  type Fault,
  MACHINE_PACES,
  MACHINE_RULES,
  type MachineFaultKind,
  planRound,
} from './plan.ts';
import { Supervisor } from './supervisor.ts';
import type { Lifted, System } from './system.ts';

const HOSTS = 3;
const CONTROLS = 2;

/**
 * A cluster on machines of its own (`TestCluster`): three hosts, each with its own mount of one
 * Ceph, two control nodes behind haproxy, three Redis with Sentinels, TLS everywhere. All is
 * supervised.
 */
export class MachineCluster implements System<MachineFaultKind> {
  readonly cluster: TestCluster;
  readonly hosts: readonly MachineHost[];
  readonly controls: readonly Supervisor[];
  readonly proxy: Supervisor;
  readonly sentinels: readonly Supervisor[];
  /** By name, such as `osd.0`. */
  readonly ceph: ReadonlyMap<string, Supervisor>;
  readonly needsSync = true;
  readonly #cephFs: CephFs;
  readonly #redis: ReadonlyMap<ClusterNode, Supervisor>;
  readonly #findings: Findings;

  private constructor(
    { cluster, cephFs, hosts }: { cluster: TestCluster; cephFs: CephFs; hosts: MachineHost[] },
    findings: Findings,
  ) {
    this.cluster = cluster;
    this.#cephFs = cephFs;
    this.hosts = hosts;
    this.#findings = findings;
    const supervise = (daemon: Daemon): Supervisor =>
      new Supervisor(daemon, () => Promise.resolve(true), findings);
    const superviseNode = (node: ClusterNode): Supervisor =>
      new Supervisor(node.daemon, () => node.isReady(), findings);
    this.controls = cluster.controls.map(superviseNode);
    this.#redis = new Map(cluster.redis.servers.map((node) => [node, superviseNode(node)]));
    this.sentinels = cluster.redis.sentinels.map(supervise);
    this.proxy = supervise(cluster.proxy);
    const clients = new Set(cephFs.mounts.map(({ client }) => client));
    const daemons = [...cephFs.ceph.daemons].filter(([, daemon]) => !clients.has(daemon));
    this.ceph = new Map(daemons.map(([name, daemon]) => [name, supervise(daemon)]));
  }

  static async start(findings: Findings): Promise<MachineCluster> {
    const mounted: MountedHost[] = [];
    let cephFs: CephFs | undefined;
    let fence = '';
    try {
      const cluster = await TestCluster.start({
        ...{ agents: HOSTS, controls: CONTROLS, redisFailsOver: true },
        onTwoWriters: (fault) => findings.report(fault),
        agentSettings: {
          ...sandboxSettings(),
          ...{ EXEC_TIMEOUT_MS: '20000', EXEC_SLOTS: '6', SANDBOX_HOST_LOST_MS: '20000' },
          DISK_SIZE_BYTES: String(192 * MiB),
        },
        prepareHost: async (made, place) => {
          cephFs ??= await CephFs.start(made.network.ownAddress);
          if (fence === '') fence = await writeFence(made.directory, cephFs);
          const host = await mountHost(cephFs, place);
          mounted.push(host);
          const moving = runsMachines ? { SANDBOX_DIR: sandboxesOf(host) } : {};
          return { STORAGE_DIR: storageOf(host), STORAGE_FENCE_COMMAND: fence, ...moving };
        },
      });
      const hosts: MachineHost[] = [];
      for (const [index, node] of cluster.agents.entries()) {
        const host = mounted[index];
        if (host === undefined || cephFs === undefined) throw new Error('a host has no storage');
        const parts = { node, settings: await node.settings(), cephFs };
        hosts.push(new MachineHost(host, { ...parts, directory: cluster.directory }, findings));
      }
      cluster.loops.ignore((file) => hosts.some((host) => host.isShutOut(file)));
      if (cephFs === undefined) throw new Error('there is no storage');
      return new MachineCluster({ cluster, cephFs, hosts }, findings);
    } catch (error) {
      await cephFs?.[Symbol.asyncDispose]();
      throw error;
    }
  }

  get objectUrls(): readonly string[] {
    const hosts = this.cluster.agents.map(({ machine }) => `https://${machine.address}:8710`);
    return [this.cluster.baseUrl, ...hosts];
  }

  newClient(): Promise<ApiClient> {
    return this.cluster.newClient();
  }

  async diskFolders(): Promise<string[]> {
    const [mount] = this.#cephFs.mounts;
    const [agent] = this.cluster.agents;
    if (mount === undefined || agent === undefined) throw new Error('there is no host');
    const folders = join(mount.directory, 'storage/disks');
    const listed = await agent.machine.run(['timeout', '20', 'ls', folders]);
    return listed.split('\n').filter(Boolean);
  }

  /**
   * The server that the Sentinels take for the primary.
   * @returns undefined when they cannot tell
   */
  async primary(): Promise<{ supervisor: Supervisor; machine: NetworkMachine } | undefined> {
    const node = await this.cluster.redis.primary().catch(() => undefined);
    const supervisor = node && this.#redis.get(node);
    return node && supervisor && { supervisor, machine: node.machine };
  }

  plan(
    seed: number,
    round: number,
    roundMs: number,
    only?: readonly string[],
  ): Fault<MachineFaultKind>[] {
    const how = { rules: MACHINE_RULES, paces: MACHINE_PACES, hosts: HOSTS };
    return planRound(seed, round, { roundMs, only, ...how });
  }

  inject(fault: Fault<MachineFaultKind>): Promise<Lifted> {
    return injectIntoMachines(this, fault);
  }

  /** Each fault mends what it did, so the cut connections are whole again. */
  async mend(): Promise<void> {
    for (const supervisor of this.#others) await supervisor.untilReady();
    for (const { agent } of this.hosts) await agent.untilReady();
  }

  get #others(): readonly Supervisor[] {
    const { ceph, sentinels, controls, proxy } = this;
    return [...ceph.values(), ...this.#redis.values(), ...sentinels, ...controls, proxy];
  }

  /** Copies the logs of all processes, to investigate findings. */
  async saveLogs(directory: string): Promise<void> {
    await mkdir(directory, { recursive: true });
    for (const path of [this.cluster.directory, this.#cephFs.ceph.path]) {
      const names = (await readdir(path)).filter((name) => /\.(?:log|out)$/u.test(name));
      for (const name of names) await copyFile(join(path, name), join(directory, name));
    }
  }

  /** Ends everything. Whatever is left on this machine afterwards is a finding. */
  async stop(): Promise<void> {
    for (const host of this.hosts) await host.release();
    for (const supervisor of this.#others) await supervisor.release();
    try {
      await this.cluster.stop(() => this.#cephFs.endMounts());
    } catch (error) {
      this.#findings.count('leftovers');
      this.#findings.report(`left on the machine: ${toError(error).message}`);
    } finally {
      await this.#cephFs[Symbol.asyncDispose]();
    }
  }
}
