import { mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { detectCgroups, killGroup, processesBelow } from '../../agent/system/cgroup.ts';
import { toError } from '../../shared/errors.ts';
import { newHostId } from '../../shared/ids.ts';
import { forgetShutOut, isBeingShutOut, wasShutOut } from '../helpers/ceph-hosts.ts';
import type { CephFs, CephMount } from '../helpers/ceph-fs.ts';
import type { HostPlace } from '../helpers/cluster.ts';
import type { ClusterNode } from '../helpers/cluster-node.ts';
import type { Environment } from '../helpers/daemon.ts';
import { answerWithCertificate } from '../helpers/internal-port.ts';
import { loopFiles } from '../helpers/loops.ts';
import { waitFor } from '../helpers/wait.ts';
import type { Findings } from './findings.ts';
import { Supervisor } from './supervisor.ts';

const cgroups = await detectCgroups();
/** Where `ip netns` keeps those that have names. */
const NAMESPACES = '/run/netns';
const KILLED_WITHIN_MS = 20_000;
const LOOKS_EVERY_MS = 1_000;

const signalAll = (pids: readonly number[], signal: NodeJS.Signals): void => {
  for (const pid of pids) {
    try {
      process.kill(pid, signal);
    } catch {
      // The process has ended meanwhile.
    }
  }
};

/** A host's place in the cluster and its own mount of CephFS. */
export interface MountedHost {
  readonly hostId: string;
  readonly place: HostPlace;
  readonly mount: CephMount;
}

/** Mounts the storage on a machine, as docs/operations.md has it, before an agent is there. */
export async function mountHost(cephFs: CephFs, place: HostPlace): Promise<MountedHost> {
  const { machine, dataDir } = place;
  const hostId = newHostId();
  await mkdir(dataDir, { mode: 0o700 });
  await writeFile(join(dataDir, 'host-id'), `${hostId}\n`);
  const mount = await cephFs.mount(hostId, `${dataDir}-storage`, machine.within);
  machine.mounts = mount.namespace;
  for (const name of ['storage', 'sandboxes']) {
    await machine.run(['mkdir', '-p', '-m', '700', join(mount.directory, name)]);
  }
  return { hostId, place, mount };
}

export const storageOf = ({ mount }: MountedHost): string => join(mount.directory, 'storage');

/** Where a host of virtual machines has them: on the storage, so that they move. */
export const sandboxesOf = ({ mount }: MountedHost): string => join(mount.directory, 'sandboxes');

/**
 * A host that can lose its power, and that its operator boots anew once it was shut out of the
 * storage.
 */
export class MachineHost {
  readonly agent: Supervisor;
  readonly node: ClusterNode;
  readonly #mounted: MountedHost;
  readonly #cephFs: CephFs;
  readonly #directory: string;
  readonly #findings: Findings;
  readonly #settings: Environment;
  /** Without power, or frozen: nobody looks after it. */
  #isHit = false;
  #isOff = false;
  readonly #ending = new AbortController();
  readonly #tending: Promise<void>;

  constructor(
    mounted: MountedHost,
    parts: { node: ClusterNode; settings: Environment; cephFs: CephFs; directory: string },
    findings: Findings,
  ) {
    const { node } = parts;
    this.node = node;
    this.#mounted = mounted;
    this.#cephFs = parts.cephFs;
    this.#directory = parts.directory;
    this.#settings = parts.settings;
    this.#findings = findings;
    this.agent = new Supervisor(
      node.daemon,
      () => node.isReady(),
      findings,
      (lastLog) => this.#bootIfBarred(lastLog),
    );
    this.#tending = this.#tend();
  }

  /** Whether the storage takes nothing of what the file's loop device writes. */
  isShutOut(file: string): boolean {
    const { mount, hostId } = this.#mounted;
    const isOwn = file.startsWith(`${mount.directory}/`);
    return isOwn && (this.#isOff || isBeingShutOut(this.#directory, hostId));
  }

  /**
   * Kills everything that runs there, the client of the storage included, and boots it.
   * @returns as {@link Supervisor.kill}
   */
  async losePower(offMs: number): Promise<number | undefined> {
    return this.agent.kill(offMs, {
      end: () => this.#turnOff(),
      beforeStart: () => this.#boot(),
    });
  }

  /** Stops the agent and the client of the storage from running for a time. */
  async freeze(ms: number): Promise<number | undefined> {
    const { client } = this.#mounted.mount;
    this.#isHit = true;
    try {
      const { pid } = client;
      process.kill(pid, 'SIGSTOP');
      try {
        return await this.agent.freeze(ms);
      } finally {
        if (client.isRunning && client.pid === pid) process.kill(pid, 'SIGCONT');
      }
    } finally {
      this.#isHit = false;
    }
  }

  /** Lets the agent end from now on. */
  async release(): Promise<void> {
    this.#ending.abort();
    await this.#tending;
    await this.agent.release();
  }

  async #turnOff(): Promise<void> {
    this.#isHit = true;
    const { mount, place } = this.#mounted;
    const { client } = mount;
    const cgroup = this.#settings['AGENT_CGROUP'] ?? '';
    // Nobody may act on the end of another: all stand still first.
    const all = [...(await place.machine.processes()), ...(await processesBelow(cgroups, cgroup))];
    signalAll(all, 'SIGSTOP');
    signalAll(all, 'SIGKILL');
    await client.stop('SIGKILL');
    this.#isOff = true;
    await waitFor(
      `${place.machine.name} to be off`,
      async () => {
        const left = await killGroup(cgroups, cgroup, LOOKS_EVERY_MS);
        const others = await place.machine.processes();
        signalAll(others, 'SIGKILL');
        return left.length === 0 && others.length === 0;
      },
      KILLED_WITHIN_MS,
    );
  }

  async #boot(): Promise<void> {
    const { hostId, mount, place } = this.#mounted;
    await this.#cephFs.endMount(mount);
    // The host's loop devices go with its mounts.
    await waitFor(`the loop devices of ${place.machine.name} to go`, async () =>
      [...loopFiles().values()].every((file) => !file.startsWith(`${mount.directory}/`)),
    );
    await this.#cephFs.boot(mount);
    await this.#forgetNetworks();
    await forgetShutOut(this.#directory, hostId);
    this.#isOff = false;
    this.#isHit = false;
  }

  /** The kernel of a host that boots knows nothing of the networks that it had. */
  async #forgetNetworks(): Promise<void> {
    const { machine } = this.#mounted.place;
    const own = `berth-${this.#mounted.hostId.replace('host-', '')}-`;
    for (const name of await readdir(NAMESPACES)) {
      if (name.startsWith(own)) await rm(join(NAMESPACES, name));
    }
    await machine.run(['nft', 'flush', 'ruleset']);
  }

  /** Does what docs/operations.md asks of an operator whose host was shut out. */
  async #tend(): Promise<void> {
    const { signal } = this.#ending;
    while (!signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, LOOKS_EVERY_MS));
      if (this.#isHit || !this.agent.isUp || !(await this.#isBarred())) continue;
      if (this.#isHit || signal.aborted) continue;
      this.#findings.count('hosts booted after they were shut out');
      await this.losePower(0);
    }
  }

  /** The same where the agent cannot even start. */
  async #bootIfBarred(lastLog: string): Promise<void> {
    if (this.#isHit || !lastLog.includes('ESHUTDOWN')) return;
    this.#findings.count('hosts booted after they were shut out');
    try {
      await this.#turnOff();
      await this.#boot();
    } catch (error) {
      this.#findings.report(
        `${this.node.machine.name} cannot be booted: ${toError(error).message}`,
      );
    }
  }

  /** Whether the storage says that it accepts nothing of this host. */
  async #isBarred(): Promise<boolean> {
    if (wasShutOut(this.#directory, this.#mounted.hostId)) return true;
    const url = `https://${this.node.machine.address}:8711/readyz`;
    const answer = await answerWithCertificate(url, this.#settings).catch(() => undefined);
    return answer?.body.includes('the storage fails') === true;
  }
}
