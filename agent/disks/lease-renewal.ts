import { runInBackground } from '../../shared/background.ts';
import type { DiskLease, DiskLeases } from '../../shared/directory/disk-leases.ts';
import { DISK_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import type { Beat } from '../system/beat.ts';
import type { DiskHolders } from './disk-holders.ts';

export interface LeaseRenewalOptions {
  readonly lease: DiskLease;
  readonly leases: DiskLeases;
  readonly holders: DiskHolders;
  /** The leases of all disks are renewed at the same beats. */
  readonly beat: Beat;
  /**
   * When the lease was asked for, by `performance.now()`: it counts from there, so that a late
   * answer does not extend it.
   */
  readonly askedAt: number;
  /** The lease is lost, or could not be renewed in time: the disk must be given up. */
  readonly onLost: () => void;
  readonly log: Logger;
}

/**
 * Renews the lease of an attached disk until it is closed. The lease of a disk that a sandbox
 * mounts does not expire, and is taken again when the directory has lost it.
 */
export class LeaseRenewal {
  readonly #options: LeaseRenewalOptions;
  readonly #stopRenewing: () => void;
  /** Ends the attachment unless a renewal succeeds in time; restarted by each one that does. */
  #expiry: NodeJS.Timeout;
  #isClosed = false;

  constructor(options: LeaseRenewalOptions) {
    this.#options = options;
    const renew = (): void => runInBackground('disk.renewLease', () => this.#renew());
    // The first renewal comes earlier than that, at the others' beat, and none is later: a lease
    // ends by its own clock, `expiry`, whatever the beat does. A renewal that is not answered does
    // not hold up the next one.
    this.#stopRenewing = options.beat.every(DISK_LIMITS.diskLeaseTtlMs / 5, renew);
    this.#expiry = this.#expireAfter(options.askedAt);
  }

  get lease(): DiskLease {
    return this.#options.lease;
  }

  /** Keeps renewing, but no longer keeps the process alive. */
  unref(): void {
    this.#expiry.unref();
  }

  /** Stops renewing: the lease expires unless the caller releases it. */
  close(): void {
    this.#isClosed = true;
    this.#stopRenewing();
    clearTimeout(this.#expiry);
  }

  #expireAfter(renewedAt: number): NodeJS.Timeout {
    const validMs = DISK_LIMITS.diskLeaseTtlMs - DISK_LIMITS.diskLeaseMarginMs;
    const expired = (): void => {
      if (!this.#options.holders.any) return this.#options.onLost();
      this.#expiry = this.#expireAfter(performance.now());
      this.#expiry.unref();
    };
    return setTimeout(expired, renewedAt + validMs - performance.now());
  }

  async #renew(): Promise<void> {
    const { lease, leases, holders, onLost, log } = this.#options;
    const askedAt = performance.now();
    try {
      const renewed = await leases.renew(lease, DISK_LIMITS.diskLeaseTtlMs);
      if (this.#isClosed) return;
      if (!renewed && !(await holders.keepLease(lease))) return onLost();
      if (this.#isClosed) return;
      clearTimeout(this.#expiry);
      this.#expiry = this.#expireAfter(askedAt);
    } catch (error) {
      log.warn({ diskId: lease.diskId, err: error }, 'disk:leaseRenewalFailed');
    }
  }
}
