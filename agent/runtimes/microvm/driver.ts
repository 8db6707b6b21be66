import { once } from 'node:events';
import { mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf, toError } from '../../../shared/errors.ts';
import { sandboxIdPattern } from '../../../shared/ids.ts';
import type { Logger } from '../../../shared/log.ts';
import { hostBootId, isAlive } from '../../../shared/process-id.ts';
import { paths, type SandboxSettings } from '../../config.ts';
import { step } from '../../step.ts';
import type { CgroupHost } from '../container/cgroup.ts';
import {
  BootError,
  type Machine,
  type MachineEnd,
  type MachineSpec,
  type RuntimeDriver,
} from '../driver.ts';
import { chooseAccelerator } from './accelerator.ts';
import { GuestUnavailableError } from './guest-errors.ts';
import type { GuestSettings } from './guest-types.ts';
import { launch, machinePaths, type VmHost, vmCgroup } from './launch.ts';
import { howItEnded, isEndKnown } from './machine-end.ts';
import { MicrovmMachine } from './microvm-machine.ts';
import type { Accelerator } from './qemu-arguments.ts';
import { prepareRootDisk } from './root-disk.ts';
import { readIdentity } from './shim.ts';
import { listVmCgroups } from './vm-cgroup.ts';

const ROOT_LAYER = 'root.qcow2';
const idPattern = new RegExp(sandboxIdPattern, 'u');

interface MicrovmOptions extends VmHost {
  readonly sandboxesDir: string;
  readonly accelerator: Accelerator;
  readonly bootTimeoutMs: number;
  readonly log: Logger;
}

/** What the guest is told: the sandbox's own and the machine's. */
const guestSettings = ({ settings, slot }: MachineSpec): GuestSettings => ({
  ...settings,
  directory: '/',
  rootDisk: { device: '/dev/vda', type: 'ext4' },
  network: {
    interface: 'eth0',
    address: slot.guestAddress,
    prefixBits: slot.prefixBits,
    gateway: slot.gatewayAddress,
    resolver: slot.gatewayAddress,
    mtuBytes: slot.mtuBytes,
  },
});

/** Rejects with the signal's reason. */
function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const fail = (): void => reject(toError(signal.reason));
    if (signal.aborted) fail();
    else signal.addEventListener('abort', fail, { once: true });
  });
}

/** Runs sandboxes as virtual machines of QEMU. */
export class MicrovmDriver implements RuntimeDriver {
  readonly #options: MicrovmOptions;

  private constructor(options: MicrovmOptions) {
    this.#options = options;
  }

  /** Finds out how machines run here, which may take some seconds the first time. */
  static async open(
    settings: Pick<
      SandboxSettings,
      'guestDir' | 'rootDisk' | 'accelerator' | 'uidBase' | 'bootTimeoutMs'
    >,
    parts: {
      readonly dataDir: string;
      readonly cgroups: CgroupHost;
      readonly cgroupParent: string;
      readonly log: Logger;
    },
  ): Promise<MicrovmDriver> {
    const { guestDir, rootDisk, bootTimeoutMs, uidBase } = settings;
    const { dataDir, cgroups, log } = parts;
    const sandboxesDir = paths.sandboxes(dataDir);
    await mkdir(sandboxesDir, { recursive: true, mode: 0o700 });
    const cgroupParent = `${parts.cgroupParent}/sandboxes`;
    const host = { guestDir, rootDisk, cgroups, cgroupParent };
    // The user before all those of sandboxes.
    const probing = { host, directory: dataDir, uid: uidBase - 1, log };
    const accelerator = await chooseAccelerator(settings.accelerator, probing);
    return new MicrovmDriver({ ...host, sandboxesDir, accelerator, bootTimeoutMs, log });
  }

  async prepare(id: string, uid: number): Promise<void> {
    const { disks } = machinePaths(this.#directory(id));
    await mkdir(this.#directory(id), { recursive: true, mode: 0o700 });
    await step('make root disk', () =>
      prepareRootDisk(disks, ROOT_LAYER, this.#options.rootDisk, uid),
    );
  }

  async start(spec: MachineSpec, signal: AbortSignal): Promise<Machine> {
    signal.throwIfAborted();
    await this.reclaim(spec.id); // What a former attempt has left.
    try {
      return await this.#boot(spec, signal);
    } catch (error) {
      await this.reclaim(spec.id);
      signal.throwIfAborted();
      if (error instanceof BootError) throw error;
      throw new BootError('boot_failed', toError(error).message, { cause: error });
    }
  }

  async recover(spec: MachineSpec): Promise<Machine | MachineEnd> {
    const { run } = machinePaths(this.#directory(spec.id));
    const identity = await readIdentity(run);
    if (identity === undefined) {
      return { reason: 'vmm_crashed', message: 'nothing is left of the virtual machine' };
    }
    if (isAlive(identity.keeper)) return this.#machine(spec.id, identity);
    if (identity.hostBootId !== hostBootId() && !(await isEndKnown(run))) {
      return { reason: 'host_restarted', message: 'the host was restarted' };
    }
    await vmCgroup(this.#options, spec.id).kill();
    return howItEnded(run, undefined);
  }

  async reclaim(id: string): Promise<void> {
    const cgroup = vmCgroup(this.#options, id);
    const { run } = machinePaths(this.#directory(id));
    await step('kill machine', () => cgroup.kill());
    // A shim that an agent started just before its end finds neither place nor group, and gives up.
    await step('remove run directory', () => rm(run, { recursive: true, force: true }));
    await step('remove control groups', () => cgroup.remove());
  }

  async remove(id: string): Promise<void> {
    await this.reclaim(id);
    await step('remove sandbox', () => rm(this.#directory(id), { recursive: true, force: true }));
  }

  async list(): Promise<string[]> {
    const { sandboxesDir, cgroups, cgroupParent } = this.#options;
    const groups = await listVmCgroups(cgroups, cgroupParent);
    const names = new Set([...(await listNames(sandboxesDir)), ...groups]);
    return [...names].filter((name) => idPattern.test(name)).toSorted();
  }

  #directory(id: string): string {
    // It becomes part of paths that are removed.
    if (!idPattern.test(id)) throw new RangeError(`not the id of a sandbox: ${id}`);
    return join(this.#options.sandboxesDir, id);
  }

  #machine(id: string, identity: ConstructorParameters<typeof MicrovmMachine>[0]['identity']) {
    const { run } = machinePaths(this.#directory(id));
    const cgroup = vmCgroup(this.#options, id);
    return new MicrovmMachine({ runDir: run, identity, cgroup, log: this.#options.log });
  }

  async #boot(spec: MachineSpec, signal: AbortSignal): Promise<Machine> {
    const directory = this.#directory(spec.id);
    const { id: name, vcpuCount, memSizeMib, uid, slot } = spec;
    const { namespace, tap, guestMac: mac } = slot;
    await launch(this.#options, {
      ...{ name, directory, vcpuCount, memSizeMib, uid },
      accelerator: this.#options.accelerator,
      memory: { kind: 'own' },
      diskLayers: [ROOT_LAYER],
      network: { namespace, tap, mac },
    });
    signal.throwIfAborted();
    const identity = await readIdentity(machinePaths(directory).run);
    if (identity === undefined) throw new Error('the machine told nothing of itself');
    const machine = this.#machine(spec.id, identity);
    try {
      await this.#untilRunning(machine, spec, signal);
      return machine;
    } catch (error) {
      machine.detach();
      throw error;
    }
  }

  async #untilRunning(
    machine: MicrovmMachine,
    spec: MachineSpec,
    signal: AbortSignal,
  ): Promise<void> {
    const { bootTimeoutMs } = this.#options;
    const over = new AbortController();
    const late = AbortSignal.timeout(bootTimeoutMs);
    const limit = AbortSignal.any([signal, late, over.signal]);
    const endedEarly = machine.ended.then((end) => {
      throw new BootError('boot_failed', `${end.reason}: ${end.message}`);
    });
    try {
      await Promise.race([configure(machine, spec, limit), endedEarly, aborted(limit)]);
      signal.throwIfAborted();
    } catch (error) {
      if (!late.aborted || signal.aborted) throw error;
      const message = `the guest was not ready within ${bootTimeoutMs} ms`;
      throw new BootError('boot_timeout', message, { cause: error });
    } finally {
      over.abort();
    }
  }
}

/** On whichever connection it works: one may break, and all of it may be said twice. */
async function configure(
  machine: MicrovmMachine,
  spec: MachineSpec,
  signal: AbortSignal,
): Promise<void> {
  const { guest } = machine;
  while (!signal.aborted) {
    const { channel } = guest;
    if (channel === undefined) {
      await once(guest, 'opened', { signal });
      continue;
    }
    try {
      await step('configure guest', () => channel.configure(guestSettings(spec)));
      return;
    } catch (error) {
      if (!(error instanceof GuestUnavailableError)) throw error;
    }
  }
}

async function listNames(path: string): Promise<string[]> {
  try {
    return await readdir(path);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return [];
    throw error;
  }
}
