import { access, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Backoff } from '../../../shared/backoff.ts';
import { ignoring } from '../../../shared/errors.ts';
import { MachineFault } from '../guest-link/guest-errors.ts';
import {
  type CgroupHost,
  killProcess,
  listGroups,
  readPids,
  removeCgroups,
} from '../../system/cgroup.ts';

const ROOT = '/sys/fs/cgroup';
const CONTROLLERS = ['memory', 'pids', 'cpu'] as const;
/**
 * systemd's own hierarchies: a machine joins its group there, too, so as not to belong to a
 * service.
 */
const TRACKING = ['systemd', 'unified'] as const;
const PERIOD_US = 100_000;
const KILL_MS_MAX = 10_000;
const POLL_MS = { min: 1, max: 20 } as const;

export interface MachineLimits {
  readonly memoryBytes: number;
  readonly processes: number;
  readonly cpus: number;
}

/** The files that the shim needs in order to join the groups and to read the OOM counter. */
export interface MachineGroups {
  readonly shimFiles: readonly string[];
  readonly machineFiles: readonly string[];
  readonly oomCounter: string;
}

const exists = (path: string): Promise<boolean> =>
  access(path).then(
    () => true,
    () => false,
  );

/**
 * The control groups of one machine: `keeper` for its shim and `machine`, which has the limits, for
 * the rest, so that the shim survives a kill of the machine and records its end.
 */
export class MachineCgroup {
  readonly #host: CgroupHost;
  readonly #path: string;

  constructor(host: CgroupHost, path: string) {
    this.#host = host;
    this.#path = path;
  }

  /** The controllers that the host offers; limits of other controllers are left out. */
  get #controllers(): readonly string[] {
    return CONTROLLERS.filter((name) => this.#host.controllers.has(name));
  }

  async create(limits: MachineLimits): Promise<MachineGroups> {
    const roots = await this.#roots();
    const make = async (root: string): Promise<void> => {
      if (this.#host.version === 2) await this.#delegate(root);
      for (const group of ['keeper', 'machine']) {
        await mkdir(join(root, this.#path, group), { recursive: true });
      }
    };
    await Promise.all(roots.map(make));
    await (this.#host.version === 2 ? this.#limit(limits) : this.#limitEach(limits));
    const files = (group: string): string[] =>
      roots.map((root) => join(root, this.#path, group, 'cgroup.procs'));
    const counter =
      this.#host.version === 2
        ? join(ROOT, this.#path, 'machine/memory.events')
        : join(ROOT, 'memory', this.#path, 'machine/memory.oom_control');
    return { shimFiles: files('keeper'), machineFiles: files('machine'), oomCounter: counter };
  }

  /**
   * Makes the group of the machine's NFS server.
   * @returns the cgroup.procs that the server joins
   */
  async createServer(limits: MachineLimits): Promise<string[]> {
    const groups = (await this.#roots()).map((root) => join(root, this.#path, 'server'));
    for (const group of groups) await mkdir(group, { recursive: true });
    await (this.#host.version === 2
      ? this.#limit(limits, 'server')
      : this.#limitEach(limits, 'server'));
    return groups.map((group) => join(group, 'cgroup.procs'));
  }

  async hasServer(): Promise<boolean> {
    return (await this.serverProcesses()).length > 0;
  }

  serverProcesses(): Promise<number[]> {
    return this.#processes(['server']);
  }

  /** The path of the group with the limits. */
  get machinePath(): string {
    return `${this.#path}/machine`;
  }

  /** Kills all but the shim, which then records how the machine ended. */
  killMachine(): Promise<void> {
    return this.#kill(['machine']);
  }

  /** Kills every process in the groups. @throws Error when one does not end in time */
  kill(): Promise<void> {
    return this.#kill(['.', 'keeper', 'machine', 'server']);
  }

  async #kill(groups: readonly string[]): Promise<void> {
    const deadline = performance.now() + KILL_MS_MAX;
    for (const backoff = new Backoff(POLL_MS); ; await backoff.pause()) {
      const pids = await this.#processes(groups);
      if (pids.length === 0) return;
      if (performance.now() > deadline) {
        throw new Error(`processes of ${this.#path} do not end: ${pids.slice(0, 10).join(' ')}`);
      }
      for (const pid of pids) killProcess(pid);
      // With control groups of version 1, processes that stand still do not even end.
      await this.#setFrozen(false);
    }
  }

  /**
   * Stops every process of the machine where it is; none of them can prevent or notice it.
   * @throws MachineFault when they do not all stand still in time; they run on then
   */
  async freeze(timeoutMs: number): Promise<void> {
    const deadline = performance.now() + timeoutMs;
    for (const backoff = new Backoff(POLL_MS); ; await backoff.pause()) {
      // Repeated, because with version 1 a process that is just being started may be left out.
      const isMade = await this.#setFrozen(true);
      if (!isMade) throw new Error('this host has no control group to stop processes with');
      if (await this.#isFrozen()) return;
      if (performance.now() > deadline) {
        await this.#setFrozen(false);
        throw new MachineFault(`its processes did not stand still within ${timeoutMs} ms`);
      }
    }
  }

  /** Has them go on, if they were stopped. */
  async thaw(): Promise<void> {
    await this.#setFrozen(false);
  }

  /** @returns false when there is no such group */
  async #setFrozen(isFrozen: boolean): Promise<boolean> {
    const [file, frozen, thawed] = this.#freezer;
    try {
      await writeFile(file, isFrozen ? frozen : thawed);
      return true;
    } catch (error) {
      ignoring('ENOENT', 'ENODEV', 'EACCES')(error);
      return false;
    }
  }

  async #isFrozen(): Promise<boolean> {
    if (this.#host.version === 1) {
      return (await readFile(this.#freezer[0], 'utf8')).trim() === 'FROZEN';
    }
    const events = await readFile(join(ROOT, this.machinePath, 'cgroup.events'), 'utf8');
    return /^frozen 1$/mu.test(events);
  }

  get #freezer(): [file: string, frozen: string, thawed: string] {
    return this.#host.version === 2
      ? [join(ROOT, this.machinePath, 'cgroup.freeze'), '1', '0']
      : [join(ROOT, 'freezer', this.machinePath, 'freezer.state'), 'FROZEN', 'THAWED'];
  }

  /** Removes the groups; no process may run in them. */
  async remove(): Promise<void> {
    await removeCgroups(this.#host, this.#path);
  }

  async #roots(): Promise<string[]> {
    if (this.#host.version === 2) return [ROOT];
    const tracking = [];
    for (const name of TRACKING) if (await exists(join(ROOT, name))) tracking.push(name);
    return [...this.#controllers, ...tracking].map((name) => join(ROOT, name));
  }

  /** Enables the controllers level by level, down to the machine's groups. */
  async #delegate(root: string): Promise<void> {
    const enabled = this.#controllers.map((controller) => `+${controller}`).join(' ');
    const names = this.#path.split('/').filter((name) => name !== '');
    let group = root;
    for (const name of names) {
      await writeFile(join(group, 'cgroup.subtree_control'), enabled);
      group = join(group, name);
      await mkdir(group, { recursive: true });
    }
    await writeFile(join(group, 'cgroup.subtree_control'), enabled);
  }

  async #limit({ memoryBytes, processes, cpus }: MachineLimits, group = 'machine'): Promise<void> {
    await this.#set('memory', 'memory.max', memoryBytes, group);
    // The file is missing in kernels without swap.
    await this.#set('memory', 'memory.swap.max', 0, group).catch(ignoring('ENOENT', 'EACCES'));
    await this.#set('pids', 'pids.max', processes, group);
    await this.#set('cpu', 'cpu.max', `${Math.ceil(cpus * PERIOD_US)} ${PERIOD_US}`, group);
  }

  async #limitEach(
    { memoryBytes, processes, cpus }: MachineLimits,
    group = 'machine',
  ): Promise<void> {
    const limitMemory = async (): Promise<void> => {
      await this.#set('memory', 'memory.limit_in_bytes', memoryBytes, group);
      const withSwap = this.#set('memory', 'memory.memsw.limit_in_bytes', memoryBytes, group);
      await withSwap.catch(ignoring('ENOENT', 'EACCES'));
    };
    const limitCpu = async (): Promise<void> => {
      await this.#set('cpu', 'cpu.cfs_period_us', PERIOD_US, group);
      await this.#set('cpu', 'cpu.cfs_quota_us', Math.ceil(cpus * PERIOD_US), group);
    };
    await Promise.all([limitMemory(), limitCpu(), this.#set('pids', 'pids.max', processes, group)]);
  }

  async #set(
    controller: string,
    file: string,
    value: number | string,
    group: string,
  ): Promise<void> {
    if (!this.#controllers.includes(controller)) return;
    const root = this.#host.version === 2 ? ROOT : join(ROOT, controller);
    await writeFile(join(root, this.#path, group, file), String(value));
  }

  async #processes(groups: readonly string[]): Promise<number[]> {
    const [root = ROOT] = await this.#roots();
    const group = join(root, this.#path);
    const lists = await Promise.all(
      groups.map((name) => readPids(join(group, name, 'cgroup.procs'))),
    );
    return lists.flat();
  }
}

/** Names of the child groups of `parent`: the machines that a former agent may have left. */
export async function listMachineCgroups(host: CgroupHost, parent: string): Promise<string[]> {
  const controller = CONTROLLERS.find((name) => host.controllers.has(name));
  const root = host.version === 2 ? ROOT : join(ROOT, controller ?? 'systemd');
  return listGroups(join(root, parent));
}
