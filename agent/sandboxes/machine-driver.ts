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

/** What a machine is made of. Its directory is the sandbox's own and holds its root disk. */
export interface MachineSpec extends Shape {
  /** Names its directory and control groups. */
  readonly id: string;
  /** An unprivileged user of its own, which no other sandbox of the host has. */
  readonly uid: number;
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
  readonly kind: 'boot' | 'template' | 'checkpoint' | 'ahead';
  /** When its first instruction was, or that after it had waited, by `performance.now()`. */
  readonly beganAt: number;
}

/** A machine that runs: it goes on when the agent ends. */
export interface Machine {
  /** Undefined for one that a former agent started. */
  readonly origin: MachineOrigin | undefined;
  readonly guest: GuestLink;
  /** Settles when nothing of the machine runs any more; never rejects. */
  readonly ended: Promise<MachineEnd>;
  /** Asks the guest to end; after the grace time the machine is killed. Resolves as `ended` does. */
  stop(graceMs: number): Promise<MachineEnd>;
  /** Ends the machine at once. Resolves as `ended` does. */
  kill(): Promise<MachineEnd>;
  /**
   * Makes a checkpoint and ends the machine; durable when this resolves, and `ended` stays open.
   * When it rejects the machine runs on as if nothing had been, or, if it cannot, `ended` settles.
   */
  pause(): Promise<void>;
  /** Goes on in the middle of a pause or fork that a former agent began; without one, nothing happens. */
  goOn(): Promise<void>;
  /**
   * Gives a sandbox that is not there yet a copy of the disk and a checkpoint to resume from; this
   * machine goes on after a moment. When it rejects nothing of the copy is left.
   */
  fork(child: { readonly id: string; readonly uid: number }): Promise<void>;
  /** Lets go of the machine, which runs on; `ended` stays open. */
  detach(): void;
}

/** What runs sandboxes. All but `start` may be repeated at any time, whatever a crash left. */
export interface RuntimeDriver {
  /** Makes the root disk, unless there is one. */
  prepare(id: string, uid: number): Promise<void>;
  /** Whether a machine of this shape would begin with the memory of a template. */
  hasTemplate(shape: Shape): Promise<boolean>;
  /**
   * Makes a root disk and a machine that waits for `start` with the same id, which then takes hardly
   * any time. An agent that comes later knows nothing of it, and reclaims it.
   * @throws BootError, or the signal's reason once nothing of the machine is left
   */
  startAhead(spec: MachineSpec, signal: AbortSignal): Promise<Pick<Machine, 'ended'>>;
  /**
   * Boots a machine until its guest has acknowledged identity, time and entropy.
   * @throws BootError, or the signal's reason once nothing of it is left
   */
  start(spec: MachineSpec, signal: AbortSignal): Promise<Machine>;
  /**
   * Goes on from the checkpoint, which is gone before the guest's first instruction.
   * @throws BootError, or the signal's reason; `hasCheckpoint` tells then whether it can be repeated
   */
  resume(spec: MachineSpec, signal: AbortSignal): Promise<Machine>;
  /** A whole one; a torn or damaged one is none. */
  hasCheckpoint(id: string): Promise<boolean>;
  discardCheckpoint(id: string): Promise<void>;
  /** As `Machine.fork`, for a sandbox whose machine does not run; with its checkpoint if it has one. */
  fork(id: string, child: { readonly id: string; readonly uid: number }): Promise<void>;
  /** Takes over the machine that a former agent started, or tells how it ended since. */
  recover(spec: MachineSpec): Promise<Machine | MachineEnd>;
  /** Kills whatever there is of the machine and leaves only its disk, and its checkpoint if it is whole. */
  reclaim(id: string): Promise<void>;
  /** Deletes the disk and everything else; nothing of the machine may run. */
  remove(id: string): Promise<void>;
  /** The sandboxes that have anything on this host. */
  list(): Promise<string[]>;
}
