import { AppError } from '../../shared/errors.ts';
import { isWithinShare } from '../../shared/fair-shares.ts';
import { DISK_LIMITS } from './limits.ts';
import { settledWithin } from '../../shared/settled-within.ts';

/** An attached disk that nothing uses. */
export interface IdleDisk {
  readonly accountId: string;
  /**
   * Detaches the disk, unless it is used by now or has to stay. Never rejects.
   * @returns whether it is detached
   */
  detachIdle(): Promise<boolean>;
}

interface AttachmentShares {
  /** How many disks may be attached at once. */
  readonly count: number;
  /** The most of them that an account may have while it is alone. */
  readonly perAccountMax: number;
}

/**
 * Shares the disks that this host may have attached between accounts: each takes a loop device, of
 * which there are few. A disk that is idle makes room for another one at once, so only accounts
 * with many disks in use at the same time are ever refused (docs/decisions/0026).
 */
export class AttachedDisks {
  readonly #shares: AttachmentShares;
  /** By account: how many disks it has attached or is about to attach. */
  readonly #held = new Map<string, number>();
  #used = 0;
  /** The one that has been idle for longest is the first. */
  readonly #idle = new Set<IdleDisk>();

  constructor(shares: AttachmentShares) {
    this.#shares = shares;
  }

  /**
   * Counts a disk that is about to be attached. An account that has its share gives up an idle disk
   * of its own for it; when it has none, the account that has more, and the most, gives up one.
   * @throws AppError `no_capacity` when no such disk is idle
   */
  async take(accountId: string): Promise<void> {
    const isFree = this.#isWithinShare(accountId);
    // Counted before it is free: the place of the disk that is given up goes to nobody else.
    this.add(accountId);
    if (isFree || (await this.#detachAnother(accountId))) return;
    this.release(accountId);
    throw new AppError('no_capacity', 'too many disks are in use on the host; try again');
  }

  /** Counts a disk that has its loop device already. Never refused. */
  add(accountId: string): void {
    this.#used += 1;
    this.#held.set(accountId, this.#heldBy(accountId) + 1);
  }

  /** A disk that was counted is detached, or was not attached after all. */
  release(accountId: string): void {
    this.#used -= 1;
    const held = this.#heldBy(accountId) - 1;
    if (held > 0) this.#held.set(accountId, held);
    else this.#held.delete(accountId);
  }

  /** From now on nothing uses the disk. */
  markIdle(disk: IdleDisk): void {
    this.#idle.add(disk);
  }

  /** The disk is used, or being detached. */
  markUsed(disk: IdleDisk): void {
    this.#idle.delete(disk);
  }

  #heldBy(accountId: string): number {
    return this.#held.get(accountId) ?? 0;
  }

  #isWithinShare(accountId: string): boolean {
    const { count, perAccountMax } = this.#shares;
    const free = count - this.#used;
    return isWithinShare({ count, perPartyMax: perAccountMax }, this.#heldBy(accountId), free);
  }

  /** @returns false when there is none, or it takes too long */
  async #detachAnother(accountId: string): Promise<boolean> {
    const until = performance.now() + DISK_LIMITS.diskAttachMsMax;
    const tried = new Set<IdleDisk>();
    for (;;) {
      const disk = this.#toGiveUp(accountId, tried);
      const leftMs = until - performance.now();
      if (disk === undefined || leftMs <= 0) return false;
      tried.add(disk);
      this.#idle.delete(disk); // Others who look for one meanwhile take another.
      let isDetached = false;
      const ended = disk.detachIdle().then((is) => {
        isDetached = is;
      });
      await settledWithin(ended, leftMs);
      if (isDetached) return true;
    }
  }

  #toGiveUp(accountId: string, tried: ReadonlySet<IdleDisk>): IdleDisk | undefined {
    let found: IdleDisk | undefined;
    let most = this.#heldBy(accountId) - 1; // Without the disk that is about to be attached.
    for (const disk of this.#idle) {
      if (tried.has(disk)) continue;
      if (disk.accountId === accountId) return disk;
      const held = this.#heldBy(disk.accountId);
      if (held <= most) continue;
      most = held;
      found = disk;
    }
    return found;
  }
}
