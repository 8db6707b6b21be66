import type { DiskEntry } from '../../../shared/directory/disk-record.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { rankHosts } from '../../region/placement.ts';
import type { Deps } from '../../region/deps.ts';
import { linkDiskHosts, callDiskHost, type RequestContext } from '../../region/call-disk-host.ts';
import { findDisk } from '../../region/find-disk.ts';
import { liveSandboxWith } from './attachments.ts';

/** A host's sweep has finished the deletion (`sweep-deleted-disks.ts`). */
const FINISHED_ELSEWHERE = new AppError('not_found', 'the disk was deleted meanwhile');

/** The disk whose deletion has begun: hidden from callers, not from the deletion itself. */
async function findDeleting(deps: Deps, accountId: string, diskId: string): Promise<DiskEntry> {
  const entry = await deps.directory.disks.get(accountId, diskId);
  if (entry === undefined) throw FINISHED_ELSEWHERE;
  return entry;
}

const mountedBy = (diskId: string, name: string): AppError =>
  new AppError('disk_in_use', `sandbox${name} mounts disk ${diskId}: stop or delete it first`);

/**
 * Deletes a disk with its users and data. It is gone for everybody before its data is, so what
 * fails after that is no failure of the call: the hosts go on until the data is deleted, too.
 * @returns why some of it is still to be deleted, if it is
 * @throws AppError `not_found`; `disk_in_use` while a sandbox mounts it; `no_capacity` and
 *   `unavailable` when nothing has begun
 */
export async function deleteDisk(
  deps: Deps,
  disk: { accountId: string; diskId: string },
  { requestId }: RequestContext,
): Promise<{ unfinished?: Error }> {
  const { disks } = deps.directory;
  const entry = await findDisk(deps, disk.accountId, disk.diskId);
  const user = await liveSandboxWith(deps, disk);
  if (user !== undefined) throw mountedBy(disk.diskId, ` ${user.config.name}`);
  await linkDiskHosts(deps, [entry]);
  rankHosts(deps.hub, [entry.leaseHolder]); // Refuses while no host could do it.
  const deletion = await disks.beginDelete(entry.record);
  if (deletion === 'held') throw mountedBy(disk.diskId, ''); // A sandbox has mounted it since.
  if (deletion === 'missing') throw new AppError('not_found', `disk ${disk.diskId} not found`);
  try {
    const job = { kind: 'disk.delete', payload: disk } as const;
    await callDiskHost(deps, [entry], job, { requestId }, findDeleting);
    await disks.remove(entry.record);
  } catch (error) {
    if (error !== FINISHED_ELSEWHERE) return { unfinished: toError(error) };
  }
  return {};
}
