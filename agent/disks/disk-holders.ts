import type { DiskLease, DiskLeases } from '../../shared/directory/disk-leases.ts';
import { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import { failpoint } from '../system/failpoint.ts';
import type { DiskLayout } from './disk-layout.ts';
import type { DiskStorage } from './disk-storage.ts';

/**
 * The sandboxes that mount one disk. While there is one, the disk has a second mount, which the
 * agent's guard and the next agent leave alone, and a lease that does not expire (decision 0041).
 * The caller journals each hold before it begins and forgets it after its end.
 */
export class DiskHolders {
  readonly #storage: DiskStorage;
  readonly #leases: DiskLeases;
  readonly #layout: DiskLayout;
  /** By the sandbox's id: what tells it that the disk is lost. */
  readonly #onLost = new Map<string, (reason: AppError) => void>();

  constructor(storage: DiskStorage, leases: DiskLeases, layout: DiskLayout) {
    this.#storage = storage;
    this.#leases = leases;
    this.#layout = layout;
  }

  get any(): boolean {
    return this.#onLost.size > 0;
  }

  /** Whether no other sandbox holds the disk, as far as this agent knows. */
  isLast(sandboxId: string): boolean {
    return this.#onLost.size === 0 || (this.#onLost.size === 1 && this.#onLost.has(sandboxId));
  }

  /**
   * Holds the mounted disk. When this fails, call {@link end}.
   * @returns what callers see of it
   * @throws AppError `disk_moved`, `not_found`
   */
  async add(
    lease: DiskLease,
    sandboxId: string,
    onLost: (reason: AppError) => void,
  ): Promise<string> {
    if (!this.any) {
      await failpoint('hold lease', () => this.#holdLease(lease));
      await this.#storage.hold();
    }
    this.#onLost.set(sandboxId, onLost);
    return this.#layout.contents;
  }

  /** Forgets one of several holders. */
  forget(sandboxId: string): void {
    this.#onLost.delete(sandboxId);
  }

  /** Ends the last hold. @param lease undefined when another host has it */
  async end(lease: DiskLease | undefined, sandboxId: string): Promise<void> {
    await this.#storage.unhold();
    if (lease !== undefined) {
      await failpoint('unhold lease', () => this.#leases.unhold(lease, LIMITS.diskLeaseTtlMs));
    }
    this.#onLost.delete(sandboxId);
  }

  /** After a lease could not be renewed: takes it again for the holders. @returns whether it is ours */
  async keepLease(lease: DiskLease): Promise<boolean> {
    return this.any && (await this.#leases.holdAgain(lease));
  }

  /** Another host has the disk: tells the holders, which must end. */
  lose(reason: AppError): void {
    for (const onLost of this.#onLost.values()) onLost(reason);
    this.#onLost.clear();
  }

  async #holdLease(lease: DiskLease): Promise<void> {
    // A former agent's hold, found as its mount: the disk was available when that began.
    if (this.#storage.isHeld) {
      if (await this.#leases.holdAgain(lease)) return;
      throw new AppError('disk_moved', 'another host has taken the disk');
    }
    const result = await this.#leases.hold(lease);
    if (result === 'gone') throw new AppError('not_found', 'the disk is being deleted');
    if (result === 'lost') throw new AppError('disk_moved', 'the disk is handled by another host');
  }
}
