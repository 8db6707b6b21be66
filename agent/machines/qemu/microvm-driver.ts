import { mkdir, rm } from 'node:fs/promises';
import { toError } from '../../../shared/errors.ts';
import type { AcceleratorChoice } from '../../../shared/schemas/host.ts';
import type { Logger } from '../../../shared/log.ts';
import type { MachineSettings, MicrovmSettings } from '../settings.ts';
import { exists } from '../../system/exists.ts';
import { MACHINES_GROUP } from '../../system/helper-group.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { CgroupHost } from '../../system/cgroup.ts';
import { paths } from '../../system/paths.ts';
import type { SandboxPaths } from '../../system/sandbox-paths.ts';
import {
  type Machine,
  type MachineDriver,
  type MachineEnd,
  type MachineImage,
  type MachineOwner,
  type MachineSpec,
  type ResumeOptions,
  type Shape,
  type SharedBases,
} from '../driver.ts';
import { bringUpGuest, serveMounts } from './bring-up-guest.ts';
import { warmUp } from './configure-guest.ts';
import {
  findBase,
  giveBase,
  moveBase,
  readBase,
  sharedBases,
  standsOnCopy,
} from './disk/disk-base.ts';
import { giveDisk, hasDisk, ownerOfDisk, prepareDisk } from './disk/disk-chain.ts';
import { mergeLayers } from './disk/merge-layers.ts';
import { forkAtRest, forkMachine } from './fork-machine.ts';
import { discardCheckpoint, hasCheckpoint, templateOf } from './memory/checkpoint.ts';
import { TemplateStore, type TemplateStoreOptions } from './memory/template-store.ts';
import { templatesInUse } from './memory/templates-in-use.ts';
import { type MicrovmHost, pathsOf, type SharedMachines } from './microvm-host.ts';
import { MicrovmMachine } from './microvm-machine.ts';
import { NfsServers } from './nfs-servers.ts';
import { pauseMachine } from './pause-machine.ts';
import { HostAccelerator } from './process/accelerator.ts';
import { vmCgroup } from './process/launch.ts';
import { listNames, machinePaths } from './process/machine-directory.ts';
import { listMachineCgroups } from '../shim/machine-cgroup.ts';
import { recoverVm } from './recover-vm.ts';
import { startFromCheckpoint, startNew } from './start-machine.ts';
import { LockedDatabases } from '../nfs/locked-databases.ts';
import type { MachineMount } from '../attachments.ts';
import { MachineTable, toForkError } from '../shim/machine-table.ts';
import { directoryOf } from '../shim/sandbox-directory.ts';
import { isVmId } from '../../system/vm-id.ts';
import { storedBytes } from '../shim/stored-bytes.ts';
import { untilRunning } from '../shim/until-running.ts';

const WARM_UP_MS_MAX = 10_000;

/** Runs the machines of sandboxes with QEMU. */
export class MicrovmDriver implements MachineDriver {
  readonly traits = { hasOwnKernel: true, pausedStaysInMemory: false, forksHaveMemory: true };
  readonly bases: SharedBases | undefined;
  readonly #host: MicrovmHost;
  readonly #machines: MachineTable<MicrovmMachine>;
  readonly #servers: NfsServers;

  private constructor(host: MicrovmHost) {
    this.#host = host;
    this.bases = host.bases && sharedBases(host.bases);
    this.#machines = new MachineTable(host);
    this.#servers = new NfsServers((spec) => serveMounts(host, spec), host.log);
  }

  get accelerator(): AcceleratorChoice {
    return this.#host.accelerator.choice;
  }

  /** Prepares the host for machines; the first time, probing for KVM takes some seconds. */
  static async open(
    settings: Omit<MicrovmSettings, 'kind'> & MachineSettings,
    parts: {
      readonly hostId: string;
      readonly dataDir: string;
      readonly sandboxPaths: SandboxPaths;
      readonly shared: SharedMachines | undefined;
      readonly cgroups: CgroupHost;
      readonly cgroupParent: string;
      readonly handleSecret: Buffer;
      readonly hasNetwork: boolean;
      readonly mayTrim: () => boolean;
      readonly slots: TemplateStoreOptions['slots'];
      readonly log: Logger;
    },
  ): Promise<MicrovmDriver> {
    const { guestDir, rootDisk, bootTimeoutMs, uidBase } = settings;
    const { hostId, dataDir, sandboxPaths, shared, cgroups, log } = parts;
    const sandboxesDir = sandboxPaths.sandboxes;
    await mkdir(sandboxesDir, { recursive: true, mode: 0o700 });
    await shared?.bases.removeLeftovers().catch((error: unknown) => {
      log.error({ err: toError(error) }, 'base:removeLeftoversFailed'); // The next start repeats it.
    });
    const cgroupParent = `${parts.cgroupParent}/${MACHINES_GROUP}`;
    const host = { guestDir, rootDisk, bases: shared?.bases, cgroups, cgroupParent };
    // Probing runs as the uid right before those of sandboxes.
    const probing = { host, directory: dataDir, uid: uidBase - 1, log };
    const accelerator = await HostAccelerator.open(settings.accelerator, probing);
    const templates = await TemplateStore.open({
      ...{ hostId, host, bootTimeoutMs, log },
      accelerators: () => accelerator.usable,
      directory: sandboxPaths.templates,
      makerDirectory: paths.templateMaker(dataDir),
      uid: uidBase - 1,
      isEnabled: settings.hasTemplates,
      slots: parts.slots,
      neededKeys: shared === undefined ? () => templatesInUse(sandboxesDir) : undefined,
    });
    const { handleSecret, hasNetwork, mayTrim } = parts;
    return new MicrovmDriver({
      ...{
        ...host,
        dataDir,
        handleSecret,
        databases: new LockedDatabases(),
        sandboxesDir,
        shared,
        hasNetwork,
        mayTrim,
        accelerator,
        bootTimeoutMs,
        templates,
        log,
      },
    });
  }

  async prepare({ vmId, uid }: MachineOwner, image?: MachineImage): Promise<void> {
    const { disks } = pathsOf(this.#host, vmId);
    const directory = directoryOf(this.#host, vmId);
    const { rootDisk, shared } = this.#host;
    // On shared storage, creating the sandbox has made it: if it is missing, the sandbox has moved.
    if (shared === undefined) await mkdir(directory, { recursive: true, mode: 0o700 });
    const isNew = !(await hasDisk(disks));
    if (isNew || (await readBase(directory)) === undefined) {
      const path = (isNew ? image?.rootDisk : undefined) ?? rootDisk;
      await giveBase(directory, path, this.#host);
    }
    const base = await findBase(directory, this.#host);
    await failpoint('make root disk', () => prepareDisk(disks, base.path, uid));
  }

  hasDisk(vmId: string): Promise<boolean> {
    return hasDisk(pathsOf(this.#host, vmId).disks);
  }

  async needsImage(vmId: string): Promise<boolean> {
    return (
      !(await this.hasDisk(vmId)) ||
      !(await standsOnCopy(directoryOf(this.#host, vmId), this.#host))
    );
  }

  async hasTemplate(shape: Shape): Promise<boolean> {
    return !(await this.#host.templates.forNew(shape)).isBlank;
  }

  async prewarm(
    spec: MachineSpec,
    signal: AbortSignal,
    image?: MachineImage,
  ): Promise<Pick<Machine, 'ended'>> {
    const host = this.#host;
    await mkdir(directoryOf(host, spec.vmId), { recursive: true, mode: 0o700 });
    await this.prepare(spec, image);
    const prewarmed = await this.#startWith(spec, signal, async () => {
      // Nothing of a sandbox's memory runs before it has its new owner.
      if (await this.hasCheckpoint(spec.vmId))
        return startFromCheckpoint(host, spec, signal, { isFrozen: false });
      const machine = await startNew(host, spec, signal);
      const soon = AbortSignal.any([signal, AbortSignal.timeout(WARM_UP_MS_MAX)]);
      await untilRunning(host, machine, soon, (limit) => warmUp(machine.guest, limit));
      return machine;
    });
    this.#machines.addPrewarmed(spec.vmId);
    return prewarmed;
  }

  async start(spec: MachineSpec, signal: AbortSignal): Promise<Machine> {
    const adopted = await this.#machines.adopt(spec, signal, ({ guest }, limit) =>
      bringUpGuest(this.#host, guest, spec, limit, { isFrozen: false }),
    );
    const begin = (): Promise<MicrovmMachine> => startNew(this.#host, spec, signal);
    return this.#serving(spec, adopted ?? (await this.#startWith(spec, signal, begin)));
  }

  async resume(
    spec: MachineSpec,
    signal: AbortSignal,
    { isHeld = false }: ResumeOptions = {},
  ): Promise<Machine> {
    const bringUp = { isFrozen: true, isHeld };
    const adopted = await this.#machines.adopt(spec, signal, ({ guest }, limit) =>
      bringUpGuest(this.#host, guest, spec, limit, bringUp),
    );
    const begin = (): Promise<MicrovmMachine> =>
      startFromCheckpoint(this.#host, spec, signal, bringUp);
    const resumed = adopted ?? (await this.#startWith(spec, signal, begin));
    this.releaseDisks(spec.vmId); // Its server has them.
    return this.#serving(spec, resumed);
  }

  async pause(vmId: string): Promise<void> {
    await pauseMachine(this.#host, vmId, this.#machines.running(vmId));
    this.#machines.remove(vmId);
    await this.#servers.leave(vmId);
  }

  async fork(
    vmId: string,
    child: MachineOwner,
    continued: () => void = () => undefined,
  ): Promise<void> {
    const running = this.#machines.find(vmId);
    try {
      await (running === undefined
        ? forkAtRest(this.#host, vmId, child)
        : forkMachine(this.#host, vmId, running, child, continued));
    } catch (error) {
      await this.remove(child.vmId);
      throw toForkError(error);
    }
  }

  async continueAfterCrash(vmId: string): Promise<void> {
    await this.#machines.running(vmId).continueAfterCrash();
  }

  hasCheckpoint(vmId: string): Promise<boolean> {
    return hasCheckpoint(pathsOf(this.#host, vmId).checkpoint);
  }

  mountsInUse(vmId: string, mounts: readonly MachineMount[]): Promise<readonly MachineMount[]> {
    return this.#host.databases.mountsOf(vmId, mounts);
  }

  releaseDisks(vmId: string): void {
    this.#host.databases.release(vmId);
  }

  discardCheckpoint(vmId: string): Promise<void> {
    this.releaseDisks(vmId);
    return discardCheckpoint(pathsOf(this.#host, vmId).checkpoint);
  }

  async recover(spec: MachineSpec): Promise<Machine | MachineEnd> {
    const found = await recoverVm(this.#host, spec);
    if (!(found instanceof MicrovmMachine)) return found;
    this.#machines.add(spec.vmId, found);
    // The former agent may have ended before it started the server of the mounts.
    await serveMounts(this.#host, spec);
    return this.#serving(spec, found);
  }

  async reclaim(vmId: string): Promise<void> {
    this.#machines.detach(vmId);
    const unserved = this.#servers.leave(vmId);
    const cgroup = vmCgroup(this.#host, vmId);
    const { run, merge } = pathsOf(this.#host, vmId);
    await failpoint('kill machine', () => cgroup.kill());
    await unserved; // A server that is being started makes its control group.
    // A shim that a dying agent has just started finds neither directory nor group, and ends.
    await failpoint('remove run directory', async () => {
      for (const path of [run, merge]) await rm(path, { recursive: true, force: true });
    });
    await failpoint('remove control groups', () => cgroup.remove());
  }

  async remove(vmId: string): Promise<void> {
    const directory = directoryOf(this.#host, vmId);
    this.releaseDisks(vmId);
    await failpoint('remove sandbox', () => rm(directory, { recursive: true, force: true }));
  }

  async canTake(directory: string, shape: Shape): Promise<boolean> {
    const key = await templateOf(machinePaths(directory).checkpoint);
    return key === undefined || this.#host.templates.canRestore(key, shape);
  }

  async receive({ vmId, uid }: MachineOwner): Promise<void> {
    const { disks } = pathsOf(this.#host, vmId);
    if (!(await hasDisk(disks))) return;
    await failpoint('move base', () => moveBase(directoryOf(this.#host, vmId), this.#host));
    await giveDisk(disks, uid);
  }

  async userOf(vmId: string): Promise<number | undefined> {
    const { disks } = pathsOf(this.#host, vmId);
    return (await hasDisk(disks)) ? ownerOfDisk(disks) : undefined;
  }

  storedBytes(vmId: string): Promise<number> {
    const { disks, checkpoint } = pathsOf(this.#host, vmId);
    return storedBytes([disks, checkpoint]);
  }

  async list(): Promise<string[]> {
    const { sandboxesDir, cgroups, cgroupParent } = this.#host;
    const groups = await listMachineCgroups(cgroups, cgroupParent);
    const names = new Set([...(await listNames(sandboxesDir)), ...groups]);
    return [...names].filter(isVmId).toSorted();
  }

  async close(): Promise<void> {
    this.#servers.close();
    await this.#host.accelerator.close();
    await this.#host.templates.close();
  }

  /** From now on the server of the machine's disks is looked after. */
  #serving(spec: MachineSpec, machine: MicrovmMachine): MicrovmMachine {
    this.#servers.watch(spec, machine.ended);
    return machine;
  }

  /** Starts a machine with `begin`; when that fails, nothing of the machine runs. */
  async #startWith(
    spec: MachineSpec,
    signal: AbortSignal,
    begin: () => Promise<MicrovmMachine>,
  ): Promise<MicrovmMachine> {
    const { vmId } = spec;
    signal.throwIfAborted();
    // A prewarmed machine that did not answer, or a failed attempt, has left its run directory.
    if (await exists(pathsOf(this.#host, vmId).run)) await this.reclaim(vmId);
    await this.#mergeLayers(spec, signal);
    return this.#machines.start(vmId, vmCgroup(this.#host, vmId), signal, begin);
  }

  /** Shortens a long chain of layers; when that fails, the chain is used as it is. */
  async #mergeLayers({ vmId, uid }: MachineSpec, signal: AbortSignal): Promise<void> {
    const { log } = this.#host;
    const owner = { name: vmId, uid, directory: directoryOf(this.#host, vmId) };
    try {
      const fewer = await mergeLayers(this.#host, owner, signal);
      if (fewer > 0) log.info({ vmId, fewer }, 'disk:layersMerged');
    } catch (error) {
      log.warn({ vmId, err: toError(error) }, 'disk:mergeFailed');
      signal.throwIfAborted();
    }
  }
}
