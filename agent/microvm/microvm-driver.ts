import { closeSync, existsSync } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { Socket } from 'node:net';
import { join } from 'node:path';
import type { Writable } from 'node:stream';
import { toError } from '../../shared/errors.ts';
import { sandboxIdPattern } from '../../shared/ids.ts';
import type { Logger } from '../../shared/log.ts';
import { hostBootId, isAlive } from '../../shared/process-id.ts';
import { paths } from '../system/paths.ts';
import type { SandboxSettings } from '../sandboxes/settings.ts';
import { native } from '../native/native.ts';
import { MACHINES_GROUP } from '../system/helper-group.ts';
import { step } from '../system/failpoint.ts';
import type { CgroupHost } from '../system/cgroup.ts';
import {
  BootError,
  type Machine,
  type MachineEnd,
  type MachineOrigin,
  type MachineSpec,
  type RuntimeDriver,
  type Shape,
} from '../sandboxes/machine-driver.ts';
import { chooseAccelerator } from './qemu/accelerator.ts';
import {
  CheckpointError,
  copyCheckpoint,
  discardCheckpoint,
  forkMachine,
  invalidateCheckpoint,
  type LiveMachine,
  restoreCheckpoint,
  restoreTemplate,
  templateOf,
} from './memory/checkpoint.ts';
import {
  addLayer,
  copyDisk,
  hasEmptyTop,
  ownerOfDisk,
  prepareDisk,
  readChain,
  splitDisk,
} from './disk/disk-chain.ts';
import { introduce, warmUp } from './configure-guest.ts';
import { launch, type LaunchMemory, type VmHost, vmCgroup } from './qemu/launch.ts';
import { listNames, machinePaths } from './qemu/machine-directory.ts';
import { recordedTemplate, recordTemplate, templatesInUse } from './memory/templates-in-use.ts';
import { switchLayer } from './disk/live-disk.ts';
import { howItEnded, isEndKnown } from './machine-end.ts';
import { continueMachine, type MachineProcess } from './memory/machine-state.ts';
import { mergeLayers } from './disk/merge-layers.ts';
import { MicrovmMachine } from './microvm-machine.ts';
import type { Accelerator } from './qemu/qemu-arguments.ts';
import { type MachineIdentity, readIdentity } from './qemu/shim.ts';
import type { Template } from './memory/template.ts';
import { TemplateStore, type TemplateStoreOptions } from './memory/template-store.ts';
import { listVmCgroups } from './qemu/vm-cgroup.ts';

const idPattern = new RegExp(sandboxIdPattern, 'u');

interface MicrovmOptions extends VmHost {
  readonly sandboxesDir: string;
  readonly accelerator: Accelerator;
  readonly bootTimeoutMs: number;
  readonly templates: TemplateStore;
  readonly log: Logger;
}

/** One that was made ahead has answered before; if it does not now, another one is made. */
const AHEAD_MS_MAX = 5_000;
const WARM_UP_MS_MAX = 10_000;

type Child = Parameters<RuntimeDriver['fork']>[1];

/** Gives a machine memory and devices, before its first instruction. */
type Load = (machine: MachineProcess, incoming: Writable) => Promise<void>;

interface Restored {
  readonly template: Template;
  readonly kind: MachineOrigin['kind'];
  readonly load: Load;
}

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
  /** Those that wait for `start`. */
  readonly #ahead = new Map<string, MicrovmMachine>();

  private constructor(options: MicrovmOptions) {
    this.#options = options;
  }

  /** Finds out how machines run here, which may take some seconds the first time. */
  static async open(
    settings: Pick<
      SandboxSettings,
      'guestDir' | 'rootDisk' | 'accelerator' | 'uidBase' | 'bootTimeoutMs' | 'hasTemplates'
    >,
    parts: {
      readonly dataDir: string;
      readonly cgroups: CgroupHost;
      readonly cgroupParent: string;
      readonly slots: TemplateStoreOptions['slots'];
      readonly log: Logger;
    },
  ): Promise<MicrovmDriver> {
    const { guestDir, rootDisk, bootTimeoutMs, uidBase } = settings;
    const { dataDir, cgroups, log } = parts;
    const sandboxesDir = paths.sandboxes(dataDir);
    await mkdir(sandboxesDir, { recursive: true, mode: 0o700 });
    const cgroupParent = `${parts.cgroupParent}/${MACHINES_GROUP}`;
    const host = { guestDir, rootDisk, cgroups, cgroupParent };
    // The user before all those of sandboxes.
    const probing = { host, directory: dataDir, uid: uidBase - 1, log };
    const accelerator = await chooseAccelerator(settings.accelerator, probing);
    const templates = await TemplateStore.open({
      ...{ host, accelerator, bootTimeoutMs, log },
      directory: paths.templates(dataDir),
      uid: uidBase - 1,
      isEnabled: settings.hasTemplates,
      slots: parts.slots,
      neededKeys: () => templatesInUse(sandboxesDir),
    });
    return new MicrovmDriver({ ...host, sandboxesDir, accelerator, bootTimeoutMs, templates, log });
  }

  async prepare(id: string, uid: number): Promise<void> {
    const { disks } = machinePaths(this.#directory(id));
    await mkdir(this.#directory(id), { recursive: true, mode: 0o700 });
    await step('make root disk', () => prepareDisk(disks, this.#options.rootDisk, uid));
  }

  async start(spec: MachineSpec, signal: AbortSignal): Promise<Machine> {
    const ahead = this.#ahead.get(spec.id);
    if (ahead !== undefined) {
      this.#ahead.delete(spec.id);
      if (await this.#adopt(ahead, spec, signal)) return ahead;
    }
    return this.#bringUp(spec, signal, (limit) => this.#begin(spec, limit));
  }

  async startAhead(spec: MachineSpec, signal: AbortSignal): Promise<Pick<Machine, 'ended'>> {
    await this.prepare(spec.id, spec.uid);
    const machine = await this.#bringUp(spec, signal, async (limit) => {
      const begun = await this.#begin(spec, limit);
      const soon = AbortSignal.any([limit, AbortSignal.timeout(WARM_UP_MS_MAX)]);
      await this.#untilRunning(begun, soon, (signalled) => warmUp(begun.guest, signalled));
      return begun;
    });
    this.#ahead.set(spec.id, machine);
    return machine;
  }

  async resume(spec: MachineSpec, signal: AbortSignal): Promise<Machine> {
    const directory = this.#checkpoint(spec.id);
    return this.#bringUp(spec, signal, async (limit) => {
      try {
        const key = await templateOf(directory);
        if (key === undefined) throw new CheckpointError('there is no checkpoint');
        const template = await this.#options.templates.byKey(key, spec);
        const load: Load = async (...machine) => {
          await restoreCheckpoint(...machine, { directory, template });
          await invalidateCheckpoint(directory);
        };
        const machine = await this.#restore(spec, { template, kind: 'checkpoint', load }, limit);
        machine.clearSpent(() => discardCheckpoint(directory));
        return machine;
      } catch (error) {
        // Another attempt would find the same.
        if (error instanceof CheckpointError) await discardCheckpoint(directory);
        throw error;
      }
    });
  }

  async hasCheckpoint(id: string): Promise<boolean> {
    try {
      return (await templateOf(this.#checkpoint(id))) !== undefined;
    } catch (error) {
      if (error instanceof CheckpointError) return false;
      throw error;
    }
  }

  discardCheckpoint(id: string): Promise<void> {
    return discardCheckpoint(this.#checkpoint(id));
  }

  async fork(id: string, child: Child): Promise<void> {
    const { disks } = machinePaths(this.#directory(id));
    const { rootDisk } = this.#options;
    try {
      const { shared } = await splitDisk(disks, rootDisk, await ownerOfDisk(disks));
      await this.#copyDisk(disks, shared, child);
      if (await this.hasCheckpoint(id)) {
        await copyCheckpoint(this.#checkpoint(id), this.#checkpoint(child.id));
      }
    } catch (error) {
      await this.remove(child.id);
      throw error;
    }
  }

  /** Whatever brings it up: nothing of it is left when that fails. */
  async #bringUp(
    spec: MachineSpec,
    signal: AbortSignal,
    begin: (limit: AbortSignal) => Promise<MicrovmMachine>,
  ): Promise<MicrovmMachine> {
    signal.throwIfAborted();
    // What a former attempt has left; it always begins with this.
    if (existsSync(machinePaths(this.#directory(spec.id)).run)) await this.reclaim(spec.id);
    await this.#mergeLayers(spec, signal);
    try {
      return await begin(signal);
    } catch (error) {
      await this.reclaim(spec.id);
      signal.throwIfAborted();
      if (error instanceof BootError) throw error;
      throw new BootError('boot_failed', toError(error).message, { cause: error });
    }
  }

  async #begin(spec: MachineSpec, signal: AbortSignal): Promise<MicrovmMachine> {
    const template = await this.#options.templates.forNew(spec);
    if (template.isBlank) return this.#boot(spec, template, signal);
    const load: Load = (...machine) => restoreTemplate(...machine, template);
    return this.#restore(spec, { template, kind: 'template', load }, signal);
  }

  /** Tells a machine that was made ahead who it is. @returns whether it runs as that now */
  async #adopt(machine: MicrovmMachine, spec: MachineSpec, signal: AbortSignal): Promise<boolean> {
    machine.origin = { kind: 'ahead', beganAt: performance.now() };
    const soon = AbortSignal.any([signal, AbortSignal.timeout(AHEAD_MS_MAX)]);
    try {
      await this.#untilRunning(machine, soon, (limit) =>
        introduce(machine.guest, spec, limit, { isFrozen: false }),
      );
      return true;
    } catch (error) {
      this.#options.log.warn({ vmId: spec.id, err: toError(error) }, 'machine:notTakenOver');
      return false;
    }
  }

  async recover(spec: MachineSpec): Promise<Machine | MachineEnd> {
    const { run } = machinePaths(this.#directory(spec.id));
    const identity = await readIdentity(run);
    if (identity === undefined) {
      return { reason: 'vmm_crashed', message: 'nothing is left of the virtual machine' };
    }
    if (isAlive(identity.keeper)) {
      const template = await this.#templateOf(spec, run, identity);
      const machine = this.#machine(spec, identity, template);
      machine.letGuestTalk();
      return machine;
    }
    if (identity.hostBootId !== hostBootId() && !(await isEndKnown(run))) {
      return { reason: 'host_restarted', message: 'the host was restarted' };
    }
    await vmCgroup(this.#options, spec.id).kill();
    return howItEnded(run, undefined);
  }

  async reclaim(id: string): Promise<void> {
    this.#ahead.get(id)?.detach();
    this.#ahead.delete(id);
    const cgroup = vmCgroup(this.#options, id);
    const { run, merge } = machinePaths(this.#directory(id));
    await step('kill machine', () => cgroup.kill());
    // A shim that an agent started just before its end finds neither place nor group, and gives up.
    await step('remove run directory', async () => {
      for (const path of [run, merge]) await rm(path, { recursive: true, force: true });
    });
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

  /** Whether a machine of this shape would begin with the memory of a template. */
  async hasTemplate(shape: Shape): Promise<boolean> {
    return !(await this.#options.templates.forNew(shape)).isBlank;
  }

  /** Machines run on. */
  close(): Promise<void> {
    return this.#options.templates.close();
  }

  #directory(id: string): string {
    // It becomes part of paths that are removed.
    if (!idPattern.test(id)) throw new RangeError(`not the id of a sandbox: ${id}`);
    return join(this.#options.sandboxesDir, id);
  }

  #checkpoint(id: string): string {
    return machinePaths(this.#directory(id)).checkpoint;
  }

  #machine(
    spec: MachineSpec,
    identity: MachineIdentity,
    template: Template | undefined,
  ): MicrovmMachine {
    const { id, uid } = spec;
    const { run, disks } = machinePaths(this.#directory(id));
    return new MicrovmMachine({
      ...{ runDir: run, identity, template, disksDir: disks },
      cgroup: vmCgroup(this.#options, id),
      checkpointDir: this.#checkpoint(id),
      fork: (machine, memory, child) => this.#forkRunning({ disks, uid }, machine, memory, child),
      clear: () => this.reclaim(id),
      log: this.#options.log,
    });
  }

  /** Of a machine that a former agent started; without it the machine only cannot be paused. */
  async #templateOf(
    spec: MachineSpec,
    run: string,
    { machine }: MachineIdentity,
  ): Promise<Template | undefined> {
    try {
      const key = await recordedTemplate(run);
      return await this.#options.templates.byKey(key, spec, [machine.pid]);
    } catch (error) {
      const { log } = this.#options;
      log.warn({ vmId: spec.id, err: toError(error) }, 'machine:templateUnknown');
      return undefined;
    }
  }

  async #launch(
    spec: MachineSpec,
    template: Template,
    memory: LaunchMemory,
  ): Promise<MicrovmMachine> {
    const directory = this.#directory(spec.id);
    const { run, disks } = machinePaths(directory);
    const { id: name, vcpuCount, memSizeMib, uid, slot } = spec;
    const { namespace, tap, guestMac: mac } = slot;
    await launch(this.#options, {
      ...{ name, directory, vcpuCount, memSizeMib, uid, memory },
      accelerator: this.#options.accelerator,
      diskLayers: await readChain(disks),
      network: { namespace, tap, mac },
    });
    await recordTemplate(run, template.key);
    const identity = await readIdentity(run);
    if (identity === undefined) throw new Error('the machine told nothing of itself');
    return this.#machine(spec, identity, template);
  }

  async #boot(spec: MachineSpec, template: Template, signal: AbortSignal): Promise<MicrovmMachine> {
    const machine = await this.#launch(spec, template, { kind: 'private', ram: template.ram });
    machine.origin = { kind: 'boot', beganAt: performance.now() };
    machine.letGuestTalk();
    await this.#untilRunning(machine, signal, (limit) =>
      introduce(machine.guest, spec, limit, { isFrozen: false }),
    );
    return machine;
  }

  async #restore(
    spec: MachineSpec,
    { template, kind, load }: Restored,
    signal: AbortSignal,
  ): Promise<MicrovmMachine> {
    const [readFd, writeFd] = native.pipe();
    const incoming = new Socket({ fd: writeFd, readable: false, writable: true });
    incoming.on('error', () => undefined); // The machine's status tells.
    try {
      const memory = { kind: 'restored', ram: template.ram, incoming: readFd } as const;
      const machine = await this.#launch(spec, template, memory);
      await this.#untilRunning(machine, signal, async (limit) => {
        const live = { pid: machine.pid, monitor: await machine.monitor(limit) };
        await load(live, incoming);
        limit.throwIfAborted();
        machine.letGuestTalk(); // What is said now lies there when it wakes.
        await continueMachine(live);
        machine.origin = { kind, beganAt: performance.now() };
        await introduce(machine.guest, spec, limit, { isFrozen: kind === 'checkpoint' });
      });
      return machine;
    } finally {
      closeSync(readFd);
      incoming.destroy();
    }
  }

  async #forkRunning(
    parent: { readonly disks: string; readonly uid: number },
    machine: LiveMachine,
    template: Template,
    child: Child,
  ): Promise<void> {
    const { disks, uid } = parent;
    const { rootDisk } = this.#options;
    try {
      // In the chain before anything writes to it: a machine that goes on must not be ahead of its
      // disk's record. Made before the machine stops: that takes time.
      const made = (await hasEmptyTop(disks)) ? undefined : await addLayer(disks, rootDisk, uid);
      await mkdir(this.#directory(child.id), { mode: 0o700 });
      const place = { directory: this.#checkpoint(child.id), template };
      const shared = await forkMachine(machine, place, async () => {
        const split = made ?? (await splitDisk(disks, rootDisk, uid));
        if (split.isNew) await switchLayer(machine.monitor, split.fresh);
        return split.shared;
      });
      await this.#copyDisk(disks, shared, child);
    } catch (error) {
      await this.remove(child.id);
      throw error;
    }
  }

  /** A chain that cannot be shortened is used as it is. */
  async #mergeLayers({ id: name, uid }: MachineSpec, signal: AbortSignal): Promise<void> {
    const { log } = this.#options;
    const owner = { name, uid, directory: this.#directory(name) };
    try {
      const fewer = await mergeLayers(this.#options, owner, signal);
      if (fewer > 0) log.info({ vmId: name, fewer }, 'disk:layersMerged');
    } catch (error) {
      log.warn({ vmId: name, err: toError(error) }, 'disk:layersNotMerged');
      signal.throwIfAborted();
    }
  }

  async #copyDisk(from: string, shared: readonly string[], { id, uid }: Child): Promise<void> {
    await mkdir(this.#directory(id), { recursive: true, mode: 0o700 });
    const { disks: directory } = machinePaths(this.#directory(id));
    await copyDisk(from, shared, { directory, base: this.#options.rootDisk, uid });
  }

  /** Lets go of the machine when that fails; it is to be reclaimed then. */
  async #untilRunning(
    machine: MicrovmMachine,
    signal: AbortSignal,
    bringUp: (limit: AbortSignal) => Promise<void>,
  ): Promise<void> {
    const { bootTimeoutMs } = this.#options;
    const over = new AbortController();
    const late = AbortSignal.timeout(bootTimeoutMs);
    const limit = AbortSignal.any([signal, late, over.signal]);
    const endedEarly = machine.ended.then((end) => {
      throw new BootError('boot_failed', `${end.reason}: ${end.message}`);
    });
    try {
      await Promise.race([bringUp(limit), endedEarly, aborted(limit)]);
      signal.throwIfAborted();
    } catch (error) {
      machine.detach();
      if (!late.aborted || signal.aborted) throw error;
      const message = `the guest was not ready within ${bootTimeoutMs} ms`;
      throw new BootError('boot_timeout', message, { cause: error });
    } finally {
      over.abort();
    }
  }
}
