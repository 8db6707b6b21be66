import assert from 'node:assert';
import { randomBytes } from 'node:crypto';
import { access, readdir, readFile, rm, statfs, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import { paths } from '../../agent/system/paths.ts';
import { ownPaths } from '../../agent/system/sandbox-paths.ts';
import type { SlotPool } from '../../agent/network/slots/slot-pool.ts';
import { detectCgroups, removeCgroups } from '../../agent/system/cgroup.ts';
import type { Machine, MachineDriver, MachineSpec } from '../../agent/machines/driver.ts';
import { MicrovmDriver } from '../../agent/machines/qemu/microvm-driver.ts';
import type { TemplateStoreOptions } from '../../agent/machines/qemu/memory/template-store.ts';
import { run } from '../../agent/system/spawn.ts';
import { isAlive, type ProcessId } from '../../shared/process-id.ts';
import type { DriverHost } from '../conformance/driver-host.ts';
import { Collected, processSpec } from './guest.ts';
import { SlotHost } from './slots.ts';
import { provideTemplates } from './templates.ts';
import { temporaryDirectory } from './temporary.ts';
import { waitFor } from './wait.ts';
import { machineSpec } from './machine-spec.ts';

const log = pino({ level: 'silent' });
/** Outside the ids of an agent that may run beside the tests. */
const UID_BASE = 700_000_000;

/** For drivers that make no templates. */
const NO_SLOTS: TemplateStoreOptions['slots'] = {
  lease: () => Promise.reject(new Error('there are no slots')),
  release: () => Promise.resolve(),
};

interface Settings {
  readonly hasTemplates?: boolean;
  readonly rootDisk?: string;
  readonly guestDir?: string;
  readonly bootTimeoutMs?: number;
  readonly accelerator?: 'kvm' | 'tcg';
}

function built(): { guestDir: string; rootDisk: string } {
  const { GUEST_DIR, DEFAULT_ROOT_DISK } = process.env;
  assert(GUEST_DIR !== undefined && DEFAULT_ROOT_DISK !== undefined, 'run ./scripts/test');
  return { guestDir: GUEST_DIR, rootDisk: DEFAULT_ROOT_DISK };
}

const cgroupOf = (hostId: string): string => `/berth-test/${hostId}`;

/** Opens a driver as an agent does. Another one for the same host takes its machines over. */
export async function openDriver(
  dataDir: string,
  hostId: string,
  settings: Settings = {},
  slots = NO_SLOTS,
): Promise<MicrovmDriver> {
  const cgroups = await detectCgroups();
  const defaults = { uidBase: UID_BASE, bootTimeoutMs: 120_000, hasTemplates: false } as const;
  return MicrovmDriver.open(
    { ...built(), ...defaults, accelerator: 'tcg', ...settings },
    {
      ...{ hostId, sandboxPaths: ownPaths(dataDir), shared: undefined },
      ...{ dataDir, cgroups, cgroupParent: cgroupOf(hostId), slots, log },
      ...{ handleSecret: randomBytes(32), hasNetwork: false, mayTrim: () => true },
    },
  );
}

/** A host for the test's machines. Disposing it reclaims whatever is left of them. */
export class MachineHost implements DriverHost {
  readonly dataDir: string;
  readonly slotHost = new SlotHost();
  #removeDirectory: () => Promise<void>;
  #slots: SlotPool | undefined;
  #uid = UID_BASE;

  private constructor(directory: AsyncDisposable & { readonly path: string }) {
    this.dataDir = directory.path;
    this.#removeDirectory = async () => directory[Symbol.asyncDispose]();
  }

  /** @param options a size bounds what all its machines can write, and leaves out templates */
  static async open(options: { sizeBytes?: number } = {}): Promise<MachineHost> {
    const host = new MachineHost(await temporaryDirectory());
    if (options.sizeBytes === undefined) {
      await provideTemplates(paths.templates(host.dataDir));
      return host;
    }
    const size = `size=${options.sizeBytes}`;
    await run('mount', ['-t', 'tmpfs', '-o', size, 'tmpfs', host.dataDir]);
    const remove = host.#removeDirectory;
    host.#removeDirectory = async () => {
      await run('umount', ['--lazy', host.dataDir]);
      await remove();
    };
    return host;
  }

  async resize(sizeBytes: number): Promise<void> {
    await run('mount', ['-o', `remount,size=${sizeBytes}`, this.dataDir]);
  }

  async freeBytes(): Promise<number> {
    const { bavail, bsize } = await statfs(this.dataDir);
    return bavail * bsize;
  }

  get hostId(): string {
    return this.slotHost.hostId;
  }

  async driver(settings: Settings = {}): Promise<MicrovmDriver> {
    return openDriver(this.dataDir, this.hostId, settings, await this.#slotPool());
  }

  async #slotPool(): Promise<SlotPool> {
    return (this.#slots ??= await this.slotHost.openPool({ readyMax: 0, slotsMax: 64 }));
  }

  /** The spec of a new machine, with a network slot. */
  async newSpec(changes: Partial<MachineSpec> = {}): Promise<MachineSpec> {
    const slots = await this.#slotPool();
    this.#uid += 1;
    return machineSpec({ uid: this.#uid, slot: await slots.lease(), ...changes });
  }

  /** Releases the network slot of a machine that is gone. */
  async endSpec(spec: MachineSpec): Promise<void> {
    await (await this.#slotPool()).release(spec.slot.index);
  }

  runDir(id: string): string {
    return join(paths.sandboxes(this.dataDir), id, 'run');
  }

  /** The process of a machine that runs, and that of its shim. */
  async processes(id: string): Promise<{ machine: number; keeper: number }> {
    const text = await readFile(join(this.runDir(id), 'machine.json'), 'utf8');
    const identity = JSON.parse(text) as Record<'machine' | 'keeper', { pid: number }>;
    return { machine: identity.machine.pid, keeper: identity.keeper.pid };
  }

  async killMachine(id: string): Promise<void> {
    process.kill((await this.processes(id)).machine, 'SIGKILL');
  }

  async freezeMachine(id: string): Promise<void> {
    process.kill((await this.processes(id)).machine, 'SIGSTOP');
  }

  async pretendRestart(id: string): Promise<void> {
    const file = join(this.runDir(id), 'machine.json');
    const identity = await readFile(file, 'utf8');
    const { hostBootId, keeper } = JSON.parse(identity) as {
      hostBootId: string;
      keeper: ProcessId;
    };
    await this.killMachine(id);
    await waitFor('the machine to end', async () => !isAlive(keeper));
    await rm(join(this.runDir(id), 'exit.json'));
    await writeFile(file, identity.replaceAll(hostBootId, '00000000-0000-0000-0000-000000000000'));
  }

  /** The control group of a machine, where its limits are. */
  async #group(id: string, controller: string): Promise<string> {
    const { version } = await detectCgroups();
    const name = version === 2 ? '' : controller;
    return join('/sys/fs/cgroup', name, cgroupOf(this.hostId), 'sandboxes', id, 'machine');
  }

  async #read(id: string, controller: string, one: string, two: string): Promise<string> {
    const { version } = await detectCgroups();
    const path = join(await this.#group(id, controller), version === 2 ? two : one);
    return (await readFile(path, 'utf8')).trim();
  }

  async limits(id: string): Promise<{ memoryBytes: number; processes: number; cpus: number }> {
    const memory = await this.#read(id, 'memory', 'memory.limit_in_bytes', 'memory.max');
    const processes = await this.#read(id, 'pids', 'pids.max', 'pids.max');
    const quota = await this.#read(id, 'cpu', 'cpu.cfs_quota_us', 'cpu.max');
    const cpus = Number(quota.split(' ')[0]) / 100_000;
    return { memoryBytes: Number(memory), processes: Number(processes), cpus };
  }

  /** Limits the machine's memory to this much more than it uses now. */
  async leaveMemory(id: string, bytes: number): Promise<void> {
    const used = await this.#read(id, 'memory', 'memory.usage_in_bytes', 'memory.current');
    const { version } = await detectCgroups();
    const name = version === 2 ? 'memory.max' : 'memory.limit_in_bytes';
    await writeFile(join(await this.#group(id, 'memory'), name), String(Number(used) + bytes));
  }

  /** Everything of a sandbox on the host except its disk. */
  async leftOf(id: string): Promise<string[]> {
    const groups = await readdir('/sys/fs/cgroup');
    const places = ['', ...groups].map((name) =>
      join('/sys/fs/cgroup', name, cgroupOf(this.hostId), 'sandboxes', id),
    );
    const found = await Promise.all(
      [this.runDir(id), ...places].map((path) =>
        access(path).then(
          () => [path],
          () => [],
        ),
      ),
    );
    return found.flat();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const driver = await this.driver();
    for (const id of await driver.list()) await erase(driver, id);
    await removeCgroups(await detectCgroups(), cgroupOf(this.hostId));
    await this.slotHost[Symbol.asyncDispose]();
    await this.#removeDirectory();
  }
}

/** Ends whatever there is of a machine, and removes its disk. */
export async function erase(driver: MachineDriver, vmId: string): Promise<void> {
  await driver.reclaim(vmId);
  await driver.remove(vmId);
}

/** Boots a machine without ever aborting the start. */
export async function boot(driver: MachineDriver, spec: MachineSpec): Promise<Machine> {
  await driver.prepare(spec);
  const machine = await driver.start(spec, new AbortController().signal);
  machine.guest.setMaxListeners(0);
  return machine;
}

const channelOf = (machine: Machine) =>
  waitFor('the guest to answer', async () => machine.guest.channel);

/** Starts a command in the guest and does not wait for it. */
export async function begin(machine: Machine, command: string): Promise<Collected> {
  const channel = await channelOf(machine);
  channel.setMaxListeners(0);
  const spec = processSpec(command);
  const collected = new Collected(channel, spec.id);
  await channel.start(spec);
  return collected;
}

/** Output of a command in the guest, which must succeed. */
export async function outputOf(machine: Machine, command: string): Promise<string> {
  const collected = await (await begin(machine, command)).ended();
  assert.equal(collected.exit?.exitCode, 0, collected.text);
  return collected.text.trim();
}

/** The nice values of a command and of the guest agent. */
export const prioritiesIn = (machine: Machine): Promise<string> =>
  outputOf(machine, 'echo $(nice) $(cut -d" " -f19 /proc/1/stat)');
