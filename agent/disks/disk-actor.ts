import type { AcquiredLease, DiskLease } from '../../shared/directory/disk-leases.ts';
import type { Directory } from '../../shared/directory/directory.ts';
import { AppError, toError } from '../../shared/errors.ts';
import type { Delegation } from '../../shared/jobs/disk-kinds.ts';
import { DISK_LIMITS } from './limits.ts';
import type { StoredBucket } from '../../shared/schemas/disk-bucket.ts';
import type { Logger } from '../../shared/log.ts';
import { inSpan } from '../../shared/spans.ts';
import type { DiskHoldJournal } from '../system/journal/disk-hold-journal.ts';
import type { Beat } from '../system/beat.ts';
import { paths } from '../system/paths.ts';
import type { StorageFence } from '../system/storage-fence.ts';
import type { AttachedDisks, IdleDisk } from './attached-disks.ts';
import { type DiskClaim, DiskClaims } from './disk-claims.ts';
import { type DiskLayout, layoutOf } from './disk-layout.ts';
import type { DiskFiles } from './disk-files.ts';
import { toAppError, usedBytes } from './mount.ts';
import type { AttachedBacking, DiskBacking, DiskRef } from './disk-backing.ts';
import type { DiskUses } from './disk-use.ts';
import { DiskHolders } from './disk-holders.ts';
import { DiskStorage, type DiskStorageOptions } from './disk-storage.ts';
import { LeaseRenewal } from './lease-renewal.ts';
import type { LoopDevices } from './loop-devices.ts';
import { mountAlone } from './mount-alone.ts';
import type { StorageCalls } from './storage-calls.ts';
import { writeManifest } from './write-manifest.ts';
import { Delegations } from './delegations.ts';
import { Mailbox } from '../system/queues/mailbox.ts';

export interface DiskActorDeps {
  readonly hostId: string;
  readonly runDir: string;
  readonly directory: Directory;
  readonly files: DiskFiles;
  readonly calls: StorageCalls;
  readonly loops: LoopDevices;
  readonly attachedDisks: AttachedDisks;
  readonly fence: StorageFence;
  readonly uses: DiskUses;
  readonly beat: Beat;
  readonly backing: DiskBacking;
  readonly holds: DiskHoldJournal;
  /** See {@link DiskStorageOptions.onMounted}. */
  readonly onMounted: DiskStorageOptions['onMounted'];
  readonly log: Logger;
}

interface Attachment {
  readonly renewal: LeaseRenewal;
  readonly backing: AttachedBacking | undefined;
  readonly claims: DiskClaims;
}

/**
 * A disk on this host. Holds its lease while the disk is mounted and gives the disk up in time when
 * the lease cannot be renewed, so that two hosts never write to it (docs/architecture.md, Who owns
 * which truth).
 */
export class DiskActor {
  readonly #deps: DiskActorDeps;
  readonly #disk: DiskRef;
  readonly #mailbox = new Mailbox();
  readonly #target: string;
  readonly #layout: DiskLayout;
  readonly #storage: DiskStorage;
  readonly #delegations = new Delegations();
  readonly #holders: DiskHolders;
  #attachment: Attachment | undefined;
  #idleTimer: NodeJS.Timeout | undefined;
  readonly #idle: IdleDisk;

  constructor(deps: DiskActorDeps, disk: DiskRef) {
    this.#deps = deps;
    this.#disk = disk;
    this.#target = paths.mount(deps.runDir, disk.diskId);
    this.#layout = layoutOf(this.#target);
    const { files, calls, loops, onMounted, log } = deps;
    const held = paths.heldDisk(deps.runDir, disk.diskId);
    const locations = { image: files.imagePath(disk.diskId), target: this.#target, held };
    this.#storage = new DiskStorage({ ...disk, ...locations, calls, loops, onMounted, log });
    this.#idle = { accountId: disk.accountId, detachIdle: () => this.#detachIdle() };
    this.#holders = new DiskHolders({
      ...{ disk, storage: this.#storage, leases: deps.directory.diskLeases },
      ...{ layout: layoutOf(held), journal: deps.holds },
    });
  }

  /** True while the disk's storage does not answer; every request is then refused at once. */
  get isSetAside(): boolean {
    return this.#storage.isSetAside;
  }

  get isAttached(): boolean {
    return this.#attachment !== undefined;
  }

  /** Whether a sandbox mounts the disk. */
  get isHeld(): boolean {
    return this.#holders.any;
  }

  /**
   * Mounts the disk if it is not mounted yet. Every use of a disk's contents has a claim, from
   * which the disk's figures are counted when it is released.
   * @param clientId who claims it, as the list of delegations shows it
   * @param onRevoked the disk must be given up: the holder ends its use and releases the claim
   * @throws AppError `disk_moved` when another host has it, `not_found` when it has no data,
   *   `unavailable` when its storage does not answer, `no_capacity` when too many disks are in use
   *   here
   */
  async claim(clientId: string, onRevoked: (reason: AppError) => void): Promise<DiskClaim> {
    const { claim, backing } = await this.#claim(clientId, onRevoked);
    try {
      await backing?.ready();
      return claim;
    } catch (error) {
      claim.release();
      throw error;
    }
  }

  #claim(
    clientId: string,
    onRevoked: (reason: AppError) => void,
  ): Promise<{ claim: DiskClaim; backing: AttachedBacking | undefined }> {
    const askedAt = performance.now();
    return this.#mailbox.send(async () => {
      const attachment = this.#attachment ?? (await this.#attach());
      this.#endIdleTime();
      const onReleased = (): void => {
        const durationMs = performance.now() - askedAt;
        this.#deps.uses.record(this.#disk, durationMs, () => this.#usedBytes());
        this.#whenIdle();
      };
      const claim = attachment.claims.add({ clientId, onRevoked, onReleased });
      return { claim, backing: attachment.backing };
    });
  }

  /**
   * Keeps the disk for a sandbox until {@link unhold}: it stays mounted when this agent ends, and
   * neither moves nor loses its lease. Idempotent. When this fails, call {@link unhold}.
   * @param onLost the directory gave the disk to another host, by an operator's word: the sandbox
   *   must end at once
   * @returns what callers see of the disk, at a place that stays
   * @throws AppError as {@link claim}; `not_found` when the disk is being deleted
   */
  async hold(sandboxId: string, onLost: (reason: AppError) => void): Promise<string> {
    // The contents of a bucket are there before a sandbox begins.
    const claim = await this.claim(sandboxId, () => undefined);
    try {
      return await this.#hold(sandboxId, onLost);
    } finally {
      claim.release();
    }
  }

  #hold(sandboxId: string, onLost: (reason: AppError) => void): Promise<string> {
    return this.#mailbox.send(async () => {
      const { renewal } = this.#attachment ?? (await this.#attach());
      this.#endIdleTime();
      try {
        return await this.#holders.add(renewal.lease, sandboxId, onLost);
      } finally {
        this.#whenIdle();
      }
    });
  }

  /**
   * Ends {@link hold}, also that of a former agent. Nothing of the sandbox may use the disk any
   * more. The disk stays held while another sandbox of the journal has it. Idempotent.
   */
  unhold(sandboxId: string): Promise<void> {
    return this.#mailbox.send(async () => {
      if (await this.#holders.hasOthers(sandboxId)) return this.#holders.forget(sandboxId);
      if (this.#attachment !== undefined) {
        await this.#holders.end(this.#attachment.renewal.lease, sandboxId);
        return this.#whenIdle();
      }
      await this.#releaseFormerLease((lease) => this.#holders.end(lease, sandboxId));
    });
  }

  get delegations(): Delegation[] {
    return this.#delegations.list();
  }

  /** @returns false when the client has no delegation on this inode */
  revoke(clientId: string, inodeId: number): boolean {
    return this.#delegations.revoke(clientId, inodeId);
  }

  /**
   * Gives the disk up if nothing uses it, so that another host can take it. Idempotent.
   * @throws AppError `disk_in_use`, `unavailable` when its storage does not answer
   */
  release(): Promise<void> {
    return this.#mailbox.send(async () => {
      if (this.#attachment?.claims.any === true || this.#holders.any || this.#storage.isHeld) {
        throw new AppError('disk_in_use', `disk ${this.#disk.diskId} is in use on another host`);
      }
      if (this.#attachment === undefined) {
        this.#storage.refuseIfSetAside();
        return this.#releaseFormerLease();
      }
      await this.#deps.uses.measureBeforeUnmount(this.#disk.diskId);
      const reason = new AppError('disk_moved', 'another host takes the disk');
      await this.#detach(reason, DISK_LIMITS.bucketDetachMsMax);
      this.#storage.refuseIfSetAside();
    });
  }

  /** Creates the image of a disk that the directory lists as `creating`. Idempotent. */
  create(): Promise<void> {
    return this.#mailbox.send(async () => {
      const entry = await this.#deps.directory.disks.get(this.#disk.accountId, this.#disk.diskId);
      if (entry === undefined) throw new AppError('not_found', 'the disk does not exist');
      await this.#withLease(() => this.#deps.files.create(entry.record));
      // A retry of a creation that was cut off may have replaced the disk's users.
      await writeManifest(this.#disk, this.#deps, this.#storage);
      if (entry.record.mounts !== undefined) await this.#deps.backing.check(this.#disk);
    });
  }

  /** Finds out whether the object storage behind the disk can be used. Idempotent. */
  checkMount(): Promise<void> {
    return this.#mailbox.send(() => this.#deps.backing.check(this.#disk));
  }

  /** Writes the directory's current record into the manifest. Idempotent. */
  record(): Promise<void> {
    return this.#mailbox.send(() => writeManifest(this.#disk, this.#deps, this.#storage));
  }

  /**
   * Ends everything that uses the disk and deletes its data. Idempotent.
   * @throws AppError `disk_in_use` while a sandbox mounts it
   */
  delete(): Promise<void> {
    return this.#mailbox.send(async () => {
      if (this.#holders.any) throw new AppError('disk_in_use', 'a sandbox mounts the disk');
      if (this.#attachment !== undefined) {
        await this.#detach(new AppError('not_found', 'the disk was deleted'));
      }
      await this.#withLease(() => this.#deps.files.remove(this.#disk.diskId));
    });
  }

  /**
   * Gives the disk up: unmounts it and releases the lease. A disk that a sandbox mounts stays, and
   * only what else uses it ends.
   */
  close(reason: AppError): Promise<void> {
    return this.#mailbox.send(async () => {
      this.#endIdleTime();
      if (this.#attachment === undefined) return;
      if (!this.#holders.any) return this.#detach(reason, DISK_LIMITS.bucketDetachMsMax);
      this.#attachment.claims.revoke(reason);
      await this.#attachment.claims.released();
      this.#attachment.renewal.unref();
    });
  }

  async #acquire(): Promise<AcquiredLease> {
    const { directory, hostId } = this.#deps;
    const lease = await directory.diskLeases.acquire(
      this.#disk,
      hostId,
      DISK_LIMITS.diskLeaseTtlMs,
    );
    if ('heldBy' in lease) {
      throw new AppError('disk_moved', `the disk is handled by host ${lease.heldBy}`);
    }
    return lease;
  }

  /** Runs work on the image file itself while this host holds the lease. */
  async #withLease(work: () => Promise<void>): Promise<void> {
    if (this.#attachment !== undefined) return this.#storage.work(work);
    this.#storage.refuseIfSetAside();
    const lease = await this.#acquire();
    try {
      await this.#storage.work(work);
    } finally {
      // Work that hangs may still write to the image: the lease is left to expire.
      if (!this.#storage.isSetAside) await this.#deps.directory.diskLeases.release(lease);
    }
  }

  #attach(): Promise<Attachment> {
    const { attachedDisks } = this.#deps;
    const { accountId, diskId } = this.#disk;
    const attributes = { 'berth.disk_id': diskId };
    return inSpan({ name: 'disk.attach', attributes }, async () => {
      this.#storage.refuseIfSetAside();
      // A disk that a sandbox has held since before this agent is attached already.
      if (this.#storage.isHeld) attachedDisks.add(accountId);
      else await attachedDisks.take(accountId);
      try {
        return await this.#mount();
      } catch (error) {
        attachedDisks.release(accountId);
        throw toAppError(error);
      }
    });
  }

  async #mount(): Promise<Attachment> {
    const { directory, beat, log } = this.#deps;
    const entry = await directory.disks.get(this.#disk.accountId, this.#disk.diskId);
    const [mount] = entry?.record.mounts ?? [];
    let askedAt = performance.now();
    const lease = await this.#acquire();
    const { diskLeases: leases } = directory;
    let backing: AttachedBacking | undefined;
    try {
      askedAt = await mountAlone({ ...this.#deps, lease, leases, askedAt, storage: this.#storage });
      if (mount !== undefined) backing = await this.#attachBacking(mount);
    } catch (error) {
      // A helper that hangs may still write to the image when the storage recovers, and so may what
      // could not be unmounted. The lease is left to expire: until then no other host may attach
      // it.
      if (this.#storage.isFree) await leases.release(lease);
      await this.#refuseIfMissing(error);
      throw error;
    }
    const onLost = (): void => this.#lose(attachment);
    const renewal = new LeaseRenewal({
      ...{ lease, leases, holders: this.#holders, beat, askedAt, onLost, log },
    });
    const claims = new DiskClaims(this.#layout, this.#delegations, backing);
    const attachment: Attachment = { renewal, backing, claims };
    this.#attachment = attachment;
    log.info({ diskId: this.#disk.diskId, epoch: lease.epoch }, 'disk:attached');
    return attachment;
  }

  /**
   * A disk that is not found is gone only if its storage is there.
   * @throws AppError `unavailable`
   */
  async #refuseIfMissing(error: unknown): Promise<void> {
    if (!(error instanceof AppError) || error.code !== 'not_found') return;
    await this.#storage.work(() => this.#deps.files.exists(this.#disk.diskId));
  }

  async #attachBacking(mount: StoredBucket): Promise<AttachedBacking> {
    const { contents } = this.#layout;
    try {
      const layout = { mount: this.#target, contents };
      return await this.#deps.backing.attach(this.#disk, mount, layout, () => this.#holders.any);
    } catch (error) {
      await this.#storage.undoMount();
      throw error;
    }
  }

  /** Tells the disk's users at once, ahead of the mailbox, and then detaches. */
  #lose(attachment: Attachment): void {
    const reason = new AppError('outcome_unknown', 'the host lost its lease on the disk');
    this.#holders.lose(reason);
    attachment.claims.revoke(reason);
    this.#mailbox
      .send(async () => {
        if (this.#attachment === attachment) await this.#detach(reason);
      })
      .catch((error: unknown) => this.#deps.log.error({ err: error }, 'disk:detachFailed'));
  }

  /** Bytes in use, or undefined when the disk was not mounted all the while. */
  async #usedBytes(): Promise<number | undefined> {
    const attachment = this.#attachment;
    if (attachment === undefined) return undefined;
    const bytes = attachment.backing?.bytes ?? (await usedBytes(this.#target));
    return this.#attachment === attachment ? bytes : undefined;
  }

  #endIdleTime(): void {
    clearTimeout(this.#idleTimer);
    this.#deps.attachedDisks.markUsed(this.#idle);
  }

  #whenIdle(): void {
    this.#endIdleTime();
    if (this.#holders.any || this.#attachment?.claims.any !== false) return;
    const timer = setTimeout(() => {
      this.#closeIdle(timer).catch((error: unknown) => {
        this.#deps.log.error({ err: error }, 'disk:detachFailed');
      });
    }, DISK_LIMITS.diskIdleUnmountMs);
    this.#idleTimer = timer;
    this.#deps.attachedDisks.markIdle(this.#idle);
  }

  /** @see IdleDisk.detachIdle */
  async #detachIdle(): Promise<boolean> {
    try {
      await this.#closeIdle(this.#idleTimer);
    } catch (error) {
      this.#deps.log.error({ err: error }, 'disk:detachFailed');
    }
    return !this.isAttached;
  }

  /** @param timer of the idle time that is to end; a use of the disk since then has another one */
  async #closeIdle(timer: NodeJS.Timeout | undefined): Promise<void> {
    // Outside of the mailbox: whoever wants the disk does not wait for an upload, which may take
    // long.
    const isSettled = await this.#attachment?.backing?.trySettle();
    await this.#mailbox.send(async () => {
      if (this.#idleTimer !== timer || this.#holders.any) return;
      if (this.#attachment?.claims.any !== false) return;
      // A bucket that is away may be back later: what it lacks is uploaded then.
      if (isSettled === false) return this.#whenIdle();
      await this.#deps.uses.measureBeforeUnmount(this.#disk.diskId);
      const reason = new AppError('unavailable', 'the disk was idle');
      await this.#detach(reason, DISK_LIMITS.bucketDetachMsMax);
    });
  }

  async #detach(reason: AppError, settleMs = 0): Promise<void> {
    const attachment = this.#attachment;
    if (attachment === undefined) return;
    attachment.claims.revoke(reason);
    await attachment.claims.released();
    attachment.renewal.close();
    this.#attachment = undefined;
    this.#endIdleTime();
    try {
      await attachment.backing?.detach(settleMs);
      if (await this.#storage.unmount()) await this.#releaseLease(attachment.renewal.lease);
      await attachment.backing?.unmounted();
    } finally {
      this.#deps.attachedDisks.release(this.#disk.accountId);
    }
    this.#deps.log.info({ diskId: this.#disk.diskId, reason: reason.message }, 'disk:detached');
  }

  /**
   * Releases what a former agent of this host left: it may have died between its use of the disk
   * and the release, and its lease would keep other hosts away until it expires.
   * @param endUse gets undefined when this host has no lease any more, as when an operator gave the
   *   disk to another host meanwhile
   */
  async #releaseFormerLease(
    endUse?: (lease: DiskLease | undefined) => Promise<void>,
  ): Promise<void> {
    const { directory, hostId } = this.#deps;
    const { diskLeases } = directory;
    const ttlMs = DISK_LIMITS.diskLeaseTtlMs;
    const lease = await diskLeases.acquireFormer(this.#disk, hostId, ttlMs);
    await endUse?.(lease);
    if (lease !== undefined && (await this.#storage.unmount())) await this.#releaseLease(lease);
  }

  async #releaseLease(lease: DiskLease): Promise<void> {
    try {
      await this.#deps.directory.diskLeases.release(lease);
    } catch (error) {
      // The lease expires by itself.
      this.#deps.log.warn({ err: toError(error) }, 'disk:leaseReleaseFailed');
    }
  }
}
