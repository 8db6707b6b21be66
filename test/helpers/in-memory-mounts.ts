import type {
  MachineMount,
  MountingSandbox,
  SandboxMounts,
} from '../../agent/machines/attachments.ts';
import type { SandboxMount } from '../../shared/schemas/sandbox-mount.ts';

/** Disks that sandboxes hold, without any disk. */
export class InMemoryMounts implements SandboxMounts {
  /** Ids of disks, by sandbox. */
  readonly held = new Map<string, ReadonlySet<string>>();
  /** How often a release is to fail from now on. */
  failures = 0;
  readonly close = (): void => undefined;
  /** A gate at which a test may delay or fail a hold. */
  holding: (sandboxId: string) => Promise<void> = () => Promise.resolve();
  readonly #onLost = new Map<string, (reason: Error) => void>();

  async hold(
    { id }: MountingSandbox,
    mounts: readonly SandboxMount[],
    onLost: (reason: Error) => void,
  ): Promise<() => Promise<void>> {
    await this.holding(id);
    this.#onLost.set(id, onLost);
    const had = this.held.get(id) ?? new Set<string>();
    this.held.set(id, new Set([...had, ...mounts.map(({ diskId }) => diskId)]));
    return async () => this.#set(id, had);
  }

  async retain(sandboxId: string, mounts: readonly SandboxMount[]): Promise<void> {
    const had = this.held.get(sandboxId) ?? new Set<string>();
    const kept = mounts.map(({ diskId }) => diskId).filter((diskId) => had.has(diskId));
    if (kept.length < had.size) this.#set(sandboxId, new Set(kept));
  }

  /** Has another host get the disks of a sandbox. */
  lose(sandboxId: string): void {
    this.#onLost.get(sandboxId)?.(new Error('the host lost its lease on the disk'));
  }

  locate(mounts: readonly SandboxMount[]): readonly MachineMount[] {
    return mounts.map((mount) => ({ ...mount, contents: `/disks/${mount.diskId}` }));
  }

  async recover(): Promise<void> {
    await Promise.resolve();
  }

  #set(sandboxId: string, diskIds: ReadonlySet<string>): void {
    if (this.failures > 0) {
      this.failures -= 1;
      throw new Error('the directory does not answer');
    }
    if (diskIds.size === 0) this.held.delete(sandboxId);
    else this.held.set(sandboxId, diskIds);
  }
}
