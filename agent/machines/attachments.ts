import type { SandboxMount } from '../../shared/schemas/sandbox-mount.ts';

/** A disk as a machine sees it. */
export interface MachineMount extends SandboxMount {
  /**
   * The part of the disk that callers see, on the host; stays at this place until the disk is
   * released.
   */
  readonly contents: string;
}

export interface MountingSandbox {
  readonly id: string;
  readonly accountId: string;
}

/** The disks that sandboxes of this host mount (agent/machines/nfs). */
export interface SandboxMounts {
  /**
   * Attaches the disks and keeps them for the sandbox, all or none; those that it has stay. Agents
   * come and go meanwhile.
   * @param onLost one of the disks was given to another host: the sandbox must end at once
   * @returns releases those that this call has added
   * @throws AppError `disk_in_use`, `disk_moved`, `not_found`, `bad_request`, `unavailable`
   */
  hold(
    sandbox: MountingSandbox,
    mounts: readonly SandboxMount[],
    onLost: (reason: Error) => void,
  ): Promise<() => Promise<void>>;
  /**
   * Releases the sandbox's disks but for these; nothing of it uses the others any more. Idempotent.
   */
  retain(sandboxId: string, mounts: readonly SandboxMount[]): Promise<void>;
  /** Where a machine finds the disks that its sandbox holds. */
  locate(mounts: readonly SandboxMount[]): readonly MachineMount[];
  /**
   * Releases what sandboxes hold that are not among these: a former agent ended meanwhile. Resolves
   * after the first attempt; failed ones are repeated in the background.
   */
  recover(sandboxIds: ReadonlySet<string>): Promise<void>;
  /** Repeats nothing any more; the next agent does. */
  close(): void;
}
