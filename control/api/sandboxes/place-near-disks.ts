import type { DiskEntry } from '../../../shared/directory/disk-record.ts';
import { AppError } from '../../../shared/errors.ts';
import type { SandboxMount } from '../../../shared/schemas/sandbox-mount.ts';
import type { Deps } from '../../region/deps.ts';
import {
  linkDiskHosts,
  refuseHeldByAbsent,
  releaseElsewhere,
  type RequestContext,
} from '../../region/call-disk-host.ts';
import { findMountedDisks } from '../disks/attachments.ts';

/**
 * Refuses disks whose hosts cannot give them up to another one now. To be called after
 * {@link linkDiskHosts}.
 * @throws AppError `disk_in_use`, `unavailable` when a disk's host is away
 */
export function refuseOfAbsent(deps: Deps, disks: readonly DiskEntry[]): void {
  refuseHeldByAbsent(deps, disks);
  for (const { record, leaseHolder } of disks) {
    if (leaseHolder === undefined || deps.hub.find(leaseHolder) !== undefined) continue;
    const message = `the host that handles disk ${record.id} cannot be reached now`;
    throw new AppError('unavailable', message);
  }
}

/**
 * Has other hosts give these disks up, so that a sandbox of this host can mount them.
 * @throws AppError `disk_in_use` when another host uses one of them, `unavailable`, `timeout`
 */
export async function moveDisksTo(
  deps: Deps,
  disks: readonly DiskEntry[],
  hostId: string,
  { requestId }: RequestContext,
): Promise<void> {
  await linkDiskHosts(deps, disks);
  refuseHeldByAbsent(deps, disks);
  await releaseElsewhere(deps, disks, hostId, requestId);
}

/**
 * The same for a sandbox that has a host: its disks come to it.
 * @throws AppError `not_found` too
 */
export async function bringDisks(
  deps: Deps,
  sandbox: { readonly accountId: string; readonly hostId: string },
  mounts: readonly SandboxMount[],
  context: RequestContext,
): Promise<void> {
  if (mounts.length === 0) return;
  const disks = await findMountedDisks(deps, sandbox.accountId, mounts);
  await moveDisksTo(deps, disks, sandbox.hostId, context);
}
