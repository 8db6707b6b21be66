import type { AcceleratorChoice } from '../../shared/schemas/host.ts';
import type { SandboxExitReason } from '../../shared/schemas/sandbox-record.ts';
import type { SlotPlan } from '../network/slots/slot.ts';
import type { GuestLink } from './guest-link/guest-link.ts';
import type { MachineMount } from './attachments.ts';
import type { GuestSettings } from './guest-link/guest-types.ts';

/** How large a machine is. */
export interface Shape {
  readonly vcpuCount: number;
  readonly memSizeMib: number;
}

/** A text that is the same for equal shapes only. */
export const shapeName = ({ vcpuCount, memSizeMib }: Shape): string => `${vcpuCount} ${memSizeMib}`;

/** The id and uid that belong to one machine. */
export interface MachineOwner {
  /**
   * Names the machine's directory and control groups. Usually the sandbox's id; a sandbox that
   * began as a prewarmed machine keeps that machine's id here.
   */
  readonly vmId: string;
  /** An unprivileged user that no other machine of the host has. */
  readonly uid: number;
}

/**
 * An image on this host that root disks begin with. Nothing changes it while a disk stands on it.
 */
export interface MachineImage {
  /** A file with its file system, for virtual machines. */
  readonly rootDisk: string;
  /** A directory, for containers. */
  readonly tree: string;
}

/** Options of a machine's start. */
export interface MachineSpec extends Shape, MachineOwner {
  readonly slot: SlotPlan;
  readonly settings: MachineSettings;
  /** The disks that the guest is to find at these places. */
  readonly mounts: readonly MachineMount[];
}

/** The guest's settings that the sandbox decides; the driver adds the rest. */
type MachineSettings = Pick<
  GuestSettings,
  'hostname' | 'machineId' | 'bootId' | 'environment' | 'directory' | 'user'
>;

export interface ResumeOptions {
  /** Leaves its processes frozen, until the caller thaws its guest. For {@link forksHaveMemory}. */
  readonly isHeld?: boolean;
}

/** How a machine ended, as it was observed. */
export interface MachineEnd {
  readonly reason: SandboxExitReason;
  /** For people. */
  readonly message: string;
  /** Milliseconds since the epoch; undefined when only the time of the observation is known. */
  readonly endedAt?: number;
}

/** A machine could not be started; nothing of it runs. */
export class BootError extends Error {
  readonly reason: 'boot_failed' | 'boot_timeout';

  constructor(reason: 'boot_failed' | 'boot_timeout', message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'BootError';
    this.reason = reason;
  }
}

/** How a machine was started. */
export interface MachineOrigin {
  readonly kind: 'boot' | 'template' | 'checkpoint' | 'prewarmed';
  /**
   * When it ran its first instruction, or a prewarmed one its first as a sandbox, by
   * `performance.now()`.
   */
  readonly beganAt: number;
}

/** A machine's usage, as the kernel counts it; what this host cannot measure is missing. */
export interface MachineUsage {
  /** Since the machine began. */
  readonly cpuSeconds?: number;
  readonly memoryBytes?: number;
  readonly receivedBytes?: number;
  readonly sentBytes?: number;
}

/** A running machine. It keeps running when the agent ends. */
export interface Machine {
  /** Undefined for a machine that a former agent started. */
  readonly origin: MachineOrigin | undefined;
  readonly guest: GuestLink;
  /** Resolves when nothing of the machine runs any more, unless it is detached; never rejects. */
  readonly ended: Promise<MachineEnd>;
  /** Asks the guest to shut down; after the grace time it is killed. Resolves as `ended` does. */
  stop(graceMs: number): Promise<MachineEnd>;
  /**
   * Kills the machine by the host's decision. It ends with `killed_by_host`, also for a later agent
   * that recovers it. Resolves as `ended` does.
   * @param why for the sandbox's `exit_message`
   */
  kill(why?: string): Promise<MachineEnd>;
  usage(): Promise<MachineUsage>;
  /** Stops watching the machine, which keeps running; `ended` stays open. */
  detach(): void;
}

/** Differences between drivers. Whoever uses one asks for these, never for which one it is. */
interface MachineTraits {
  /** A guest has a kernel to itself, with its own time, and can crash it. */
  readonly hasOwnKernel: boolean;
  /**
   * A paused machine keeps its memory on the host, where nothing saves it when the host restarts.
   * Otherwise its memory is in files, and it takes nothing of the host but storage.
   */
  readonly pausedStaysInMemory: boolean;
  /** A fork of a machine that runs or is paused has its memory, not only its disk. */
  readonly forksHaveMemory: boolean;
}

/** Copies of the images below disks, on storage that hosts share. */
export interface SharedBases {
  /**
   * Gives the machine in a directory its own link to its copy, if it is from before each had one.
   * @throws Error when the storage cannot be read; ENOENT when the machine has moved
   */
  keep(directory: string): Promise<void>;
  /** The copies that no machine has a link to, the longest unused first. */
  unused(): Promise<readonly { readonly name: string; readonly unusedSinceMs: number }[]>;
  /** Removes a copy. A machine that has got a link to it meanwhile keeps its own. */
  remove(name: string): Promise<void>;
}

/**
 * Runs the machines of sandboxes. A machine is found by its `vmId`, whichever agent started it.
 * Every call but `start`, `resume` and `prewarm` is idempotent, also after a crash half-way.
 *
 * The life of a machine: `prepare`, then `start` (or `prewarm`, or `resume` from a checkpoint),
 * then its end: `stop`, `kill`, `pause`, a failed start, or its own. Whichever it was, `reclaim`
 * follows once, when its owner has recorded how the machine ended.
 */
export interface MachineDriver {
  readonly traits: MachineTraits;
  /** How new machines run; undefined where they are containers. */
  readonly accelerator?: AcceleratorChoice | undefined;
  /**
   * Makes the root disk, unless it exists. From then on the machine has that image, and so have its
   * forks.
   * @param image undefined: the host's default image
   */
  prepare(owner: MachineOwner, image?: MachineImage): Promise<void>;
  /** Whether the root disk was ever made. */
  hasDisk(vmId: string): Promise<boolean>;
  /**
   * Whether this host needs the machine's image from a registry to start it: not once its disk
   * stands on a copy that is there.
   */
  needsImage(vmId: string): Promise<boolean>;
  /** Whether a machine of this shape would start from a template. */
  hasTemplate(shape: Shape): Promise<boolean>;
  /**
   * Makes a root disk and a waiting machine, so that `start` with the same id takes hardly any
   * time; of a copy with memory, a machine for `resume`, whose processes stand still until then. A
   * later agent does not take a prewarmed machine over, but reclaims it.
   * @throws BootError, or the signal's reason, when nothing of the machine runs
   */
  prewarm(
    spec: MachineSpec,
    signal: AbortSignal,
    image?: MachineImage,
  ): Promise<Pick<Machine, 'ended'>>;
  /**
   * Starts a machine; resolves when its guest has acknowledged identity, time and entropy.
   * @throws BootError, or the signal's reason, when nothing of the machine runs
   */
  start(spec: MachineSpec, signal: AbortSignal): Promise<Machine>;
  /**
   * Restores a machine from its checkpoint, which is gone when this resolves; where two machines
   * could be made of it, it is invalidated before the guest's first instruction.
   * @throws BootError, or the signal's reason; `hasCheckpoint` then tells whether it can be resumed
   *   again
   */
  resume(spec: MachineSpec, signal: AbortSignal, options?: ResumeOptions): Promise<Machine>;
  /**
   * Freezes the guest of a running machine, makes its checkpoint durable and ends the machine; its
   * `ended` stays open. When this rejects, one of three holds: the machine continues to run; it
   * could not, was killed, and `ended` resolves; or the checkpoint is durable and only ending the
   * machine failed, which `hasCheckpoint` tells.
   */
  pause(vmId: string): Promise<void>;
  /**
   * Copies disk and memory for a machine that does not exist yet, or for one that never will: a
   * snapshot, of which any number of copies may be made at once. The memory is that of the running
   * machine, which stands still for a moment, or of the checkpoint, or there is none, which
   * `hasCheckpoint` of the copy tells. A machine without a disk yields a copy without one. When
   * this rejects, nothing of the copy is left.
   * @param continued called once a running machine runs on: what is left to do then concerns the
   *   copy alone
   * @throws AppError `unavailable` when the machine or its guest ended or does not answer,
   *   `sandbox_start_conflict` when its disk cannot be copied once more
   */
  fork(vmId: string, child: MachineOwner, continued?: () => void): Promise<void>;
  /**
   * Lets a recovered machine continue if a former agent ended during its pause or fork; does
   * nothing otherwise. A guest that is slow to answer has its processes go on when it does.
   * @throws Error when it does not continue; may be repeated
   */
  continueAfterCrash(vmId: string): Promise<void>;
  /**
   * Whether a complete checkpoint exists; a torn or damaged one does not count.
   * @throws Error when the storage cannot be read
   */
  hasCheckpoint(vmId: string): Promise<boolean>;
  discardCheckpoint(vmId: string): Promise<void>;
  /**
   * Which disks a machine uses while it is paused. They stay mounted, and nobody but others of this
   * host uses them.
   */
  mountsInUse(vmId: string, mounts: readonly MachineMount[]): Promise<readonly MachineMount[]>;
  /** Uses none of them any more, as far as the paused machine can do without. Idempotent. */
  releaseDisks(vmId: string): void;
  /** Takes over a machine that a former agent started. @returns the machine, or how it has ended */
  recover(spec: MachineSpec): Promise<Machine | MachineEnd>;
  /**
   * Kills the machine and removes everything of it but disk and checkpoint, which may be the
   * machine itself, standing still.
   */
  reclaim(vmId: string): Promise<void>;
  /** Deletes disk, checkpoint and everything else on the storage. Call `reclaim` first. */
  remove(vmId: string): Promise<void>;
  /**
   * Where hosts share their storage: whether this host could go on with a machine that lies in the
   * directory, from its checkpoint too if it has one.
   */
  canTake?(directory: string, shape: Shape): Promise<boolean>;
  /** Undefined where disks stay on their host. */
  readonly bases?: SharedBases | undefined;
  /** Makes a machine that was another host's this one's, with a user of its own. Idempotent. */
  receive?(owner: MachineOwner): Promise<void>;
  /** The user that what is left of a machine belongs to; undefined when nothing tells. */
  userOf?(vmId: string): Promise<number | undefined>;
  /** How many bytes of the storage disk and checkpoint take, those shared with copies included. */
  storedBytes(vmId: string): Promise<number>;
  /** Ids of all machines of which anything exists on this host. */
  list(): Promise<string[]>;
  /** Releases the driver's own resources; machines keep running. */
  close(): Promise<void>;
}
