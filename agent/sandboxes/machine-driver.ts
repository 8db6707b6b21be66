import type { SandboxExitReason } from '../../shared/schemas/sandbox-record.ts';
import type { SlotPlan } from '../network/slot.ts';
import type { GuestLink } from '../guest-link/guest-link.ts';
import type { GuestSettings } from '../guest-link/guest-types.ts';

/** How large a machine is. */
export interface Shape {
  readonly vcpuCount: number;
  readonly memSizeMib: number;
}

/** Tells shapes apart. */
export const shapeName = ({ vcpuCount, memSizeMib }: Shape): string => `${vcpuCount} ${memSizeMib}`;

/** A machine's own name and user. */
export interface MachineOwner {
  /**
   * Names the machine's directory and control groups. Usually the sandbox's id; a sandbox that began
   * as a prewarmed machine keeps that machine's id here.
   */
  readonly vmId: string;
  /** An unprivileged user that no other machine of the host has. */
  readonly uid: number;
}

/** What a machine is started with. Its directory is its own and holds its root disk. */
export interface MachineSpec extends Shape, MachineOwner {
  readonly slot: SlotPlan;
  readonly settings: MachineSettings;
}

/** What the guest is told before it counts as running; the rest of its settings is the driver's. */
type MachineSettings = Pick<GuestSettings, 'hostname' | 'machineId' | 'bootId' | 'environment'>;

/** How a machine ended, as it was observed. */
export interface MachineEnd {
  readonly reason: SandboxExitReason;
  /** In words, for people. */
  readonly message: string;
  /** When, in milliseconds since the epoch; undefined when nobody knows better than "now". */
  readonly endedAt?: number;
}

/** A machine could not be brought up; nothing of it runs. */
export class BootError extends Error {
  readonly reason: 'boot_failed' | 'boot_timeout';

  constructor(reason: 'boot_failed' | 'boot_timeout', message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'BootError';
    this.reason = reason;
  }
}

/** How a machine came up. */
export interface MachineOrigin {
  readonly kind: 'boot' | 'template' | 'checkpoint' | 'prewarmed';
  /** When its first instruction ran, or the first after it had waited, by `performance.now()`. */
  readonly beganAt: number;
}

/** A running machine. It keeps running when the agent ends. */
export interface Machine {
  /** Undefined for a machine that a former agent started. */
  readonly origin: MachineOrigin | undefined;
  readonly guest: GuestLink;
  /** Settles when nothing of the machine runs any more, unless it is detached; never rejects. */
  readonly ended: Promise<MachineEnd>;
  /** Asks the guest to shut down; after the grace time it is killed. Resolves as `ended` does. */
  stop(graceMs: number): Promise<MachineEnd>;
  /**
   * Kills the machine on the host's own account: it ends with `killed_by_host`, also for an agent
   * that finds it later. Resolves as `ended` does.
   * @param why in words, for the sandbox's `exit_message`
   */
  kill(why?: string): Promise<MachineEnd>;
  /** Stops watching the machine, which keeps running; `ended` stays open. */
  detach(): void;
}

/**
 * What runs sandboxes. Machines are found by their `vmId`, whichever agent started them. Everything
 * but `start`, `resume` and `prewarm` may be repeated at any time, whatever a crash left.
 *
 * The life of a machine: `prepare`, then `start` (or `prewarm`, or `resume` from a checkpoint), then
 * its end: `stop`, `kill`, `pause`, a failed start, or its own. Whichever it was, `reclaim` follows
 * once, when its owner has recorded how the machine ended.
 */
export interface MachineDriver {
  /** Makes the root disk, unless there is one. */
  prepare(owner: MachineOwner): Promise<void>;
  /** Whether the root disk was ever made. */
  hasDisk(vmId: string): Promise<boolean>;
  /** Whether a machine of this shape would begin with the memory of a template. */
  hasTemplate(shape: Shape): Promise<boolean>;
  /**
   * Makes a root disk and a machine that waits for `start` with the same id, which then takes hardly
   * any time. A later agent knows nothing of it, and reclaims it.
   * @throws BootError, or the signal's reason, when nothing of the machine runs
   */
  prewarm(spec: MachineSpec, signal: AbortSignal): Promise<Pick<Machine, 'ended'>>;
  /**
   * Boots a machine until its guest has acknowledged identity, time and entropy.
   * @throws BootError, or the signal's reason, when nothing of the machine runs
   */
  start(spec: MachineSpec, signal: AbortSignal): Promise<Machine>;
  /**
   * Brings a machine up from its checkpoint, which is gone before the guest's first instruction.
   * @throws BootError, or the signal's reason; `hasCheckpoint` tells then whether to try again
   */
  resume(spec: MachineSpec, signal: AbortSignal): Promise<Machine>;
  /**
   * Freezes the guest of a running machine, makes its checkpoint durable and ends the machine; its
   * `ended` stays open. When this rejects, the machine runs on as if nothing had been, or, if it
   * cannot, is killed and `ended` settles; or the checkpoint is there and only the end failed, which
   * `hasCheckpoint` tells.
   */
  pause(vmId: string): Promise<void>;
  /**
   * Gives a machine that does not exist yet a copy of the disk, and of the memory if there is any:
   * of a running machine, which stands still for a moment, or of a checkpoint. The copy of a machine
   * without a disk has none either. When this rejects, nothing of the copy is left.
   * @throws AppError `unavailable` when the machine or its guest ended or does not answer,
   *   `sandbox_start_conflict` when its disk cannot be copied once more
   */
  fork(vmId: string, child: MachineOwner): Promise<void>;
  /**
   * Has a recovered machine run on whose pause or fork a former agent was ended in; without one,
   * nothing happens.
   */
  continueAfterCrash(vmId: string): Promise<void>;
  /** Whether there is a whole one; a torn or damaged one is none. */
  hasCheckpoint(vmId: string): Promise<boolean>;
  discardCheckpoint(vmId: string): Promise<void>;
  /** Takes over the machine that a former agent started, or tells how it ended since. */
  recover(spec: MachineSpec): Promise<Machine | MachineEnd>;
  /** Kills what runs of the machine and removes all but its disk and its checkpoint. */
  reclaim(vmId: string): Promise<void>;
  /** Deletes disk, checkpoint and everything else on the storage; the machine must be reclaimed. */
  remove(vmId: string): Promise<void>;
  /** The ids of which anything is on this host. */
  list(): Promise<string[]>;
  /** Machines keep running. */
  close(): Promise<void>;
}
