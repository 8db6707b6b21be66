import { existsSync } from 'node:fs';
import { chmod, mkdir, readdir, rm } from 'node:fs/promises';
import type { Logger } from '../../../shared/log.ts';
import type { SeccompProfile } from '../oci/seccomp.ts';
import { listMachineCgroups } from '../shim/machine-cgroup.ts';
import { MachineTable, toForkError } from '../shim/machine-table.ts';
import { directoryOf } from '../shim/sandbox-directory.ts';
import { isVmId } from '../../system/vm-id.ts';
import { storedBytes } from '../shim/stored-bytes.ts';
import { untilRunning } from '../shim/until-running.ts';
import type {
  Machine,
  MachineDriver,
  MachineEnd,
  MachineImage,
  MachineOwner,
  MachineSpec,
} from '../driver.ts';
import type { MachineMount } from '../attachments.ts';
import type { ContainerSettings, MachineSettings } from '../settings.ts';
import type { CgroupHost } from '../../system/cgroup.ts';
import { failpoint } from '../../system/failpoint.ts';
import { MACHINES_GROUP } from '../../system/helper-group.ts';
import { paths } from '../../system/paths.ts';
import { configureContainer } from './configure-container.ts';
import { forkContainer } from './fork-container.ts';
import { launchContainer } from './launch-container.ts';
import { discardPaused, isPaused, pauseContainer, resumeContainer } from './paused-container.ts';
import { recoverContainer, watchContainer } from './recover-container.ts';
import { cgroupOf, firstIdOf, pathsOf, type RuncHost } from './runc-host.ts';
import { RuncMachine } from './runc-machine.ts';
import { hasDisk, makeDisk, makeEmptyDisk } from './sandbox-disk.ts';

/** Runs sandboxes as containers of runc (docs/decisions/0033). */
export class RuncDriver implements MachineDriver {
  readonly traits = { hasOwnKernel: false, pausedStaysInMemory: true, forksHaveMemory: false };
  readonly #host: RuncHost;
  readonly #machines: MachineTable<RuncMachine>;
  /** Called when loop devices may have become free. */
  readonly #onDisksFree: () => void;

  private constructor(host: RuncHost, onDisksFree: () => void) {
    this.#host = host;
    this.#machines = new MachineTable(host);
    this.#onDisksFree = onDisksFree;
  }

  /** @throws Error when this host cannot run such containers */
  static async open(
    settings: Omit<ContainerSettings, 'kind'> & MachineSettings,
    parts: {
      readonly dataDir: string;
      readonly hasNetwork: boolean;
      readonly cgroups: CgroupHost;
      readonly cgroupParent: string;
      readonly loops: { readonly firstNumber: number; sweepSoon(): void };
      readonly seccomp: SeccompProfile;
      readonly hiddenPaths: readonly string[];
      readonly log: Logger;
    },
  ): Promise<RuncDriver> {
    const { dataDir, hasNetwork, cgroups, seccomp, hiddenPaths, log } = parts;
    const { imageDir, diskBytes, idBase } = settings;
    const sandboxesDir = paths.sandboxes(dataDir);
    await mkdir(sandboxesDir, { recursive: true });
    // Containers' users must be able to reach their root directory through it.
    await chmod(sandboxesDir, 0o711);
    const emptyDisk = paths.emptyDisk(dataDir, diskBytes);
    await makeEmptyDisk(emptyDisk, diskBytes);
    const host: RuncHost = {
      ...{ sandboxesDir, imageDir, emptyDisk, idBase, cgroups, seccomp, hiddenPaths, log },
      hasNetwork,
      firstLoop: parts.loops.firstNumber,
      uidBase: settings.uidBase,
      bootTimeoutMs: settings.bootTimeoutMs,
      cgroupParent: `${parts.cgroupParent}/${MACHINES_GROUP}`,
    };
    return new RuncDriver(host, () => parts.loops.sweepSoon());
  }

  async prepare({ vmId, uid }: MachineOwner, image?: MachineImage): Promise<void> {
    const { directory, disk } = pathsOf(this.#host, vmId);
    const { emptyDisk, imageDir } = this.#host;
    firstIdOf(this.#host, uid);
    await mkdir(directory, { recursive: true, mode: 0o711 });
    await failpoint('make root disk', () =>
      makeDisk(disk, { emptyDisk, imageDir: image?.tree ?? imageDir }),
    );
  }

  hasDisk(vmId: string): Promise<boolean> {
    return Promise.resolve(hasDisk(pathsOf(this.#host, vmId).disk));
  }

  /** A container runs on the tree of its image. */
  needsImage(): Promise<boolean> {
    return Promise.resolve(true);
  }

  /** A container is prewarmed as it is started: there is no memory to begin with. */
  hasTemplate(): Promise<boolean> {
    return Promise.resolve(true);
  }

  async prewarm(
    spec: MachineSpec,
    signal: AbortSignal,
    image?: MachineImage,
  ): Promise<Pick<Machine, 'ended'>> {
    await this.prepare(spec, image);
    const machine = await this.#bringUp(spec, signal);
    this.#machines.addPrewarmed(spec.vmId);
    return machine;
  }

  async start(spec: MachineSpec, signal: AbortSignal): Promise<Machine> {
    const adopted = await this.#machines.adopt(spec, signal, (machine, limit) =>
      configureContainer(this.#host, machine, spec, limit),
    );
    return adopted ?? this.#bringUp(spec, signal);
  }

  resume(spec: MachineSpec, signal: AbortSignal): Promise<Machine> {
    return this.#machines.start(spec.vmId, undefined, signal, () =>
      resumeContainer(this.#host, spec, signal),
    );
  }

  async pause(vmId: string): Promise<void> {
    await pauseContainer(this.#host, vmId, this.#machines.running(vmId));
    this.#machines.remove(vmId);
  }

  async fork(
    vmId: string,
    child: MachineOwner,
    continued: () => void = () => undefined,
  ): Promise<void> {
    firstIdOf(this.#host, child.uid);
    try {
      await forkContainer(this.#host, vmId, this.#machines.find(vmId), child, continued);
    } catch (error) {
      await this.remove(child.vmId);
      throw toForkError(error);
    }
  }

  async continueAfterCrash(vmId: string): Promise<void> {
    await this.#machines.running(vmId).cgroup.thaw();
  }

  hasCheckpoint(vmId: string): Promise<boolean> {
    return isPaused(this.#host, vmId);
  }

  mountsInUse(_: string, mounts: readonly MachineMount[]): Promise<readonly MachineMount[]> {
    return Promise.resolve(mounts);
  }

  /** A paused container has its mounts all the while. */
  releaseDisks(): void {}

  async discardCheckpoint(vmId: string): Promise<void> {
    if (await discardPaused(this.#host, vmId)) await this.reclaim(vmId);
  }

  async recover(spec: MachineSpec): Promise<Machine | MachineEnd> {
    const found = await recoverContainer(this.#host, spec.vmId);
    if (found instanceof RuncMachine) this.#machines.add(spec.vmId, found);
    return found;
  }

  /** A paused container stays: it is its sandbox's memory. */
  async reclaim(vmId: string): Promise<void> {
    this.#machines.detach(vmId);
    if (await isPaused(this.#host, vmId)) return;
    const cgroup = cgroupOf(this.#host, vmId);
    const { run } = pathsOf(this.#host, vmId);
    await failpoint('kill machine', () => cgroup.kill());
    // A shim that an agent started just before its end finds neither place nor group, and gives up.
    await failpoint('remove run directory', () => rm(run, { recursive: true, force: true }));
    await failpoint('remove control groups', () => cgroup.remove());
    this.#onDisksFree();
  }

  async remove(vmId: string): Promise<void> {
    const directory = directoryOf(this.#host, vmId);
    await this.discardCheckpoint(vmId);
    await failpoint('remove sandbox', () => rm(directory, { recursive: true, force: true }));
  }

  storedBytes(vmId: string): Promise<number> {
    return storedBytes([pathsOf(this.#host, vmId).disk]);
  }

  async list(): Promise<string[]> {
    const { sandboxesDir, cgroups, cgroupParent } = this.#host;
    const groups = await listMachineCgroups(cgroups, cgroupParent);
    const names = new Set([...(await readdir(sandboxesDir)), ...groups]);
    return [...names].filter(isVmId).toSorted();
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  /** Nothing of the container runs when this fails. */
  async #bringUp(spec: MachineSpec, signal: AbortSignal): Promise<RuncMachine> {
    const { vmId } = spec;
    signal.throwIfAborted();
    // A prewarmed container that did not answer, or a failed attempt, has left its run directory.
    if (existsSync(pathsOf(this.#host, vmId).run)) await this.reclaim(vmId);
    return this.#machines.start(vmId, cgroupOf(this.#host, vmId), signal, async () => {
      await launchContainer(this.#host, spec);
      const machine = await watchContainer(this.#host, vmId);
      machine.origin = { kind: 'boot', beganAt: performance.now() };
      await untilRunning(this.#host, machine, signal, (limit) =>
        configureContainer(this.#host, machine, spec, limit),
      );
      return machine;
    });
  }
}
