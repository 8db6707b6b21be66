import type { AcquiredLease, DiskLeases } from '../../shared/directory/disk-leases.ts';
import { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { StorageFence } from '../system/storage-fence.ts';
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
 * Mounts a disk that this host has the lease on. A host whose lease ended without a release, and that
 * still has the image attached as far as the storage tells, is shut out of the storage first. A host
 * that has detached it, by its guard for example, is left alone.
 * @returns when the lease was last asked for or renewed, by `performance.now()`
 * @throws AppError `unavailable` when that host cannot be shut out; as {@link DiskStorage.mount}
 */
export async function mountAlone(parts: MountAloneParts): Promise<number> {
  const { lease, leases, storage } = parts;
  const { formerHosts } = lease;
  if (formerHosts.length === 0) {
    await storage.mount();
    return parts.askedAt;
  }
  const askedAt = (await storage.isFreeElsewhere()) ? parts.askedAt : await shutOutFormer(parts);
  await storage.mount();
  try {
    await leases.recordAlone(lease);
  } catch (error) {
    await storage.undoMount();
    throw error;
  }
  return askedAt;
}

async function shutOutFormer({ lease, leases, fence }: MountAloneParts): Promise<number> {
  for (const host of lease.formerHosts) await fence.shutOut(host);
  const askedAt = performance.now();
  if (await leases.renew(lease, LIMITS.diskLeaseTtlMs)) return askedAt;
  throw new AppError('disk_moved', 'another host has taken the disk');
}
