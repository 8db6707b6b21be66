import type { AcquiredLease, DiskLeases } from '../../shared/directory/disk-leases.ts';
import { AppError } from '../../shared/errors.ts';
import { DISK_LIMITS } from './limits.ts';
import type { StorageFence } from '../system/storage-fence.ts';
import { StillAttachedError } from './mount.ts';
import type { DiskStorage } from './disk-storage.ts';

interface MountAloneParts {
  readonly lease: AcquiredLease;
  /** When the lease was asked for, by `performance.now()`. */
  readonly askedAt: number;
  readonly leases: DiskLeases;
  readonly storage: DiskStorage;
  readonly fence: StorageFence;
}

/**
 * Mounts a disk that this host has the lease on. A host whose lease ended without a release, and
 * that still has the image attached as far as the storage tells, is shut out of the storage first.
 * A host that has detached it, by its guard for example, is left alone. So are all others when it
 * is this host itself that still has the image attached: what a failed unmount left is detached.
 * @returns when the lease was last asked for or renewed, by `performance.now()`
 * @throws AppError `unavailable` when that host cannot be shut out, or something here uses the
 *   image; as {@link DiskStorage.mount}
 */
export async function mountAlone(parts: MountAloneParts): Promise<number> {
  const { lease, leases, storage } = parts;
  if (lease.formerHosts.length === 0) return mountAfterLeftover(parts);
  const askedAt = (await storage.isImageFree()) ? parts.askedAt : await freeImage(parts);
  await storage.mount();
  try {
    await leases.recordAlone(lease);
  } catch (error) {
    await storage.undoMount();
    throw error;
  }
  return askedAt;
}

/** Without a former host, only this one can have the image attached. */
async function mountAfterLeftover(parts: MountAloneParts): Promise<number> {
  const { storage } = parts;
  try {
    await storage.mount();
    return parts.askedAt;
  } catch (error) {
    if (!(error instanceof StillAttachedError) || !(await storage.detachLeftover())) throw error;
  }
  const askedAt = await renew(parts);
  await storage.mount();
  return askedAt;
}

/** Has nobody use the image any more who did. */
async function freeImage(parts: MountAloneParts): Promise<number> {
  const { lease, storage, fence } = parts;
  if (!(await storage.detachLeftover())) {
    for (const host of lease.formerHosts) await fence.shutOut(host);
  }
  return renew(parts);
}

/** Both took a while. @throws AppError `disk_moved` */
async function renew({ lease, leases }: MountAloneParts): Promise<number> {
  const askedAt = performance.now();
  if (await leases.renew(lease, DISK_LIMITS.diskLeaseTtlMs)) return askedAt;
  throw new AppError('disk_moved', 'another host has taken the disk');
}
