import type { DiskLease, DiskLeases } from '../../shared/directory/disk-leases.ts';
import { AppError } from '../../shared/errors.ts';
import { DISK_LIMITS } from './limits.ts';
import type { DiskHoldJournal } from '../system/journal/disk-hold-journal.ts';
import { failpoint } from '../system/failpoint.ts';
import type { DiskRef } from './disk-backing.ts';
import type { DiskLayout } from './disk-layout.ts';
import type { DiskStorage } from './disk-storage.ts';

interface DiskHoldersParts {
  readonly disk: DiskRef;
  readonly storage: DiskStorage;
  readonly leases: DiskLeases;
  /** Layout of the second mount. */
  readonly layout: DiskLayout;
  /** Has every hold, also those that the former agent left and that this one has not taken over. */
  readonly journal: DiskHoldJournal;
}

/**
 * The sandboxes that mount one disk. While there is one, the disk has a second mount, which the
 * agent's guard and the next agent leave alone, and a lease that does not expire (decision 0002).
 * The journal has each hold from before it begins until after its end. Used by one caller at a
 * time.
 */
export class DiskHolders {
  readonly #parts: DiskHoldersParts;
  /** By the sandbox's id: what tells it that the disk is lost. */
  readonly #onLost = new Map<string, (reason: AppError) => void>();
  /** With it and the second mount the disk is held; undefined while one of both may be missing. */
  #heldUnder: DiskLease | undefined;

  constructor(parts: DiskHoldersParts) {
    this.#parts = parts;
  }

  /** Whether this agent knows of a sandbox that holds the disk. */
  get any(): boolean {
    return this.#onLost.size > 0;
  }

  /** Whether another sandbox holds the disk, or held it when the former agent ended. */
  hasOthers(sandboxId: string): Promise<boolean> {
    const { disk, journal } = this.#parts;
    return journal.hasOthers({ diskId: disk.diskId, sandboxId });
  }

  /**
   * Holds the mounted disk. When this fails, call {@link end}, or {@link forget} if others hold it.
   * @returns what callers see of it
   * @throws AppError `disk_moved`, `not_found`
   */
  async add(
    lease: DiskLease,
    sandboxId: string,
    onLost: (reason: AppError) => void,
  ): Promise<string> {
    const { disk, storage, layout, journal } = this.#parts;
    await failpoint('journal hold', () => journal.add({ ...disk, sandboxId }));
    if (this.#heldUnder !== lease) {
      await failpoint('hold lease', () => this.#holdLease(lease));
      await storage.hold();
      this.#heldUnder = lease;
    }
    this.#onLost.set(sandboxId, onLost);
    return layout.contents;
  }

  /** Forgets one of several holders. */
  async forget(sandboxId: string): Promise<void> {
    const { disk, journal } = this.#parts;
    await failpoint('journal unhold', () => journal.remove({ diskId: disk.diskId, sandboxId }));
    this.#onLost.delete(sandboxId);
  }

  /** Ends the last hold. @param lease undefined when another host has it */
  async end(lease: DiskLease | undefined, sandboxId: string): Promise<void> {
    const { storage, leases } = this.#parts;
    this.#heldUnder = undefined;
    await storage.unhold();
    if (lease !== undefined) {
      await failpoint('unhold lease', () => leases.unhold(lease, DISK_LIMITS.diskLeaseTtlMs));
    }
    await this.forget(sandboxId);
  }

  /**
   * After a lease could not be renewed: takes it again for the holders.
   * @returns whether it is ours
   */
  async keepLease(lease: DiskLease): Promise<boolean> {
    return this.any && (await this.#parts.leases.holdAgain(lease));
  }

  /** Another host has the disk: tells the holders, which must end. */
  lose(reason: AppError): void {
    for (const onLost of this.#onLost.values()) onLost(reason);
    this.#onLost.clear();
    this.#heldUnder = undefined;
  }

  async #holdLease(lease: DiskLease): Promise<void> {
    const { storage, leases } = this.#parts;
    // A former hold, found as its mount: the disk was available when that began.
    if (storage.isHeld) {
      if (await leases.holdAgain(lease)) return;
      throw new AppError('disk_moved', 'another host has taken the disk');
    }
    const result = await leases.hold(lease);
    if (result === 'gone') throw new AppError('not_found', 'the disk is being deleted');
    if (result === 'lost') throw new AppError('disk_moved', 'the disk is handled by another host');
  }
}
