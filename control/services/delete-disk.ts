import type { DiskEntry } from '../../shared/directory/disk-record.ts';
import { AppError, toError } from '../../shared/errors.ts';
import { rankHosts } from '../dispatch/placement.ts';
import type { Deps } from './deps.ts';
import { callHandler, type RequestContext } from './call-handler.ts';
import { findDisk } from './find-disk.ts';

/** A host's sweep has finished the deletion (`sweep-deleted-disks.ts`). */
const FINISHED_ELSEWHERE = new AppError('not_found', 'the disk was deleted meanwhile');

/** The disk whose deletion has begun: hidden from callers, not from the deletion itself. */
async function findDeleting(deps: Deps, accountId: string, diskId: string): Promise<DiskEntry> {
  const entry = await deps.directory.disks.get(accountId, diskId);
  if (entry === undefined) throw FINISHED_ELSEWHERE;
  return entry;
}

/**
 * Deletes a disk with its users and data. It is gone for everybody before its data is, so what fails
 * after that is no failure of the call: the hosts go on until the data is deleted, too.
 * @returns why some of it is still to be deleted, if it is
 * @throws AppError `not_found`; `no_capacity` and `unavailable` when nothing has begun
 */
export async function deleteDisk(
  deps: Deps,
  disk: { accountId: string; diskId: string },
  { requestId }: RequestContext,
): Promise<{ unfinished?: Error }> {
  const { disks } = deps.directory;
  const entry = await findDisk(deps, disk.accountId, disk.diskId);
  rankHosts(deps.hub.hosts, [entry.handler]); // Refuses while no host could do it.
  if (!(await disks.beginDelete(entry.record))) {
    throw new AppError('not_found', `disk ${disk.diskId} not found`);
  }
  try {
    const job = { kind: 'disk.delete', payload: disk } as const;
    await callHandler(deps, [entry], job, { requestId }, findDeleting);
    await disks.remove(entry.record);
  } catch (error) {
    if (error !== FINISHED_ELSEWHERE) return { unfinished: toError(error) };
  }
  return {};
}
