import assert from 'node:assert';
import { access, chmod, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import { CAPABILITIES } from '../../agent/machines/oci/bundle.ts';
import { readHiddenPaths } from '../../agent/machines/oci/hidden-paths.ts';
import { readSeccomp } from '../../agent/machines/oci/seccomp.ts';
import { LoopDevices } from '../../agent/disks/loop-devices.ts';
import { planSlot } from '../../agent/network/slots/slot.ts';
import { RuncDriver } from '../../agent/machines/runc/runc-driver.ts';
import type { MachineSpec } from '../../agent/machines/driver.ts';
import { detectCgroups, removeCgroups } from '../../agent/system/cgroup.ts';
import { paths } from '../../agent/system/paths.ts';
import { LIMITS } from '../../shared/limits.ts';
import { newHostId } from '../../shared/ids.ts';
import { isAlive, type ProcessId } from '../../shared/process-id.ts';
import { MiB } from '../../shared/units.ts';
import type { DriverHost } from '../conformance/driver-host.ts';
import { erase } from './machines.ts';
import { temporaryDirectory } from './temporary.ts';
import { waitFor } from './wait.ts';
import { machineSpec } from './machine-spec.ts';

const log = pino({ level: 'silent' });
const UID_BASE = 700_000_000;
/** The first id of the host that a container may have. */
export const FIRST_ID = 2 ** 31 + 2 ** 27;
const DISK_BYTES = 256 * MiB;
/** So short that no guest can be ready. */
const NEVER_READY_MS = 1;

const isThere = (path: string): Promise<boolean> =>
  access(path).then(
    () => true,
    () => false,
  );

/** A host for the test's containers. Disposing it reclaims whatever is left of them. */
export class RuncMachines implements DriverHost {
  readonly dataDir: string;
  readonly hostId = newHostId();
  readonly #loops = new LoopDevices(this.hostId, log);
  readonly #removeDirectory: () => Promise<void>;
  /** Other tests beside this one have other ids. */
  #uid = UID_BASE + Math.floor((Math.random() * LIMITS.containerSandboxesMax) / 2);
  #slot = 0;

  private constructor(directory: AsyncDisposable & { readonly path: string }) {
    this.dataDir = directory.path;
    this.#removeDirectory = async () => directory[Symbol.asyncDispose]();
  }

  static async open(): Promise<RuncMachines> {
    const host = new RuncMachines(await temporaryDirectory());
    // The users of containers get to theirs through it, as an agent has it.
    await chmod(host.dataDir, 0o711);
    return host;
  }

  get #cgroup(): string {
    return `/berth-test/${this.hostId}`;
  }

  async driver(settings: { bootTimeoutMs?: number } = {}): Promise<RuncDriver> {
    const { DEFAULT_IMAGE_DIR: imageDir } = process.env;
    assert(imageDir !== undefined, 'run ./scripts/test');
    const bootTimeoutMs = settings.bootTimeoutMs === undefined ? 60_000 : NEVER_READY_MS;
    const common = { uidBase: UID_BASE, bootTimeoutMs };
    return RuncDriver.open(
      { imageDir, diskBytes: DISK_BYTES, idBase: FIRST_ID, ...common },
      {
        dataDir: this.dataDir,
        hasNetwork: false,
        cgroups: await detectCgroups(),
        cgroupParent: this.#cgroup,
        loops: this.#loops,
        seccomp: await readSeccomp('/usr/share/containers/seccomp.json', CAPABILITIES),
        hiddenPaths: await readHiddenPaths(),
        log,
      },
    );
  }

  async newSpec(changes: Partial<MachineSpec> = {}): Promise<MachineSpec> {
    this.#uid += 1;
    this.#slot += 1;
    return machineSpec({ uid: this.#uid, slot: planSlot(this.hostId, this.#slot), ...changes }); // Containers have none.
  }

  runDir(id: string): string {
    return join(paths.sandboxes(this.dataDir), id, 'run');
  }

  async #identity(id: string): Promise<Record<'machine' | 'keeper', ProcessId>> {
    const text = await readFile(join(this.runDir(id), 'machine.json'), 'utf8');
    return JSON.parse(text) as Record<'machine' | 'keeper', ProcessId>;
  }

  /** The first process of a container that runs, as the host sees it. */
  async pid(id: string): Promise<number> {
    return (await this.#identity(id)).machine.pid;
  }

  async killMachine(id: string): Promise<void> {
    process.kill(await this.pid(id), 'SIGKILL');
  }

  async freezeMachine(id: string): Promise<void> {
    process.kill(await this.pid(id), 'SIGSTOP');
  }

  async pretendRestart(id: string): Promise<void> {
    const file = join(this.runDir(id), 'machine.json');
    const text = await readFile(file, 'utf8');
    const { hostBootId } = JSON.parse(text) as { hostBootId: string };
    const { keeper } = await this.#identity(id);
    await this.killMachine(id);
    await waitFor('the container to end', async () => !isAlive(keeper));
    await rm(join(this.runDir(id), 'exit.json'));
    await writeFile(file, text.replaceAll(hostBootId, '00000000-0000-0000-0000-000000000000'));
  }

  async limits(id: string): Promise<{ memoryBytes: number; processes: number; cpus: number }> {
    const { version } = await detectCgroups();
    const read = async (controller: string, one: string, two: string): Promise<number> => {
      const group = join(version === 2 ? '' : controller, this.#cgroup, 'sandboxes', id, 'machine');
      const text = await readFile(join('/sys/fs/cgroup', group, version === 2 ? two : one), 'utf8');
      return Number(text.trim().split(' ')[0]);
    };
    return {
      memoryBytes: await read('memory', 'memory.limit_in_bytes', 'memory.max'),
      processes: await read('pids', 'pids.max', 'pids.max'),
      cpus: (await read('cpu', 'cpu.cfs_quota_us', 'cpu.max')) / 100_000,
    };
  }

  /** Everything of a sandbox on the host except its disk, or a container that is paused. */
  async leftOf(id: string): Promise<string[]> {
    if (await isThere(join(this.runDir(id), 'paused.json'))) return [];
    const groups = ['', ...(await readdir('/sys/fs/cgroup'))];
    const places = [
      this.runDir(id),
      ...groups.map((name) => join('/sys/fs/cgroup', name, this.#cgroup, 'sandboxes', id)),
    ];
    const found = await Promise.all(places.map(isThere));
    const mounts = await readFile('/proc/self/mountinfo', 'utf8');
    const left = mounts.split('\n').filter((line) => line.includes(id));
    return [...places.filter((_, index) => found[index]), ...left];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const driver = await this.driver();
    for (const id of await driver.list()) await erase(driver, id);
    await removeCgroups(await detectCgroups(), this.#cgroup);
    await this.#loops.close();
    await this.#removeDirectory();
  }
}
