import type { DiskEntry } from '../../shared/directory/disks.ts';
import { AppError } from '../../shared/errors.ts';
import type { Deps } from './deps.ts';
import { callHandler, type RequestContext } from './call-handler.ts';

/** An agent that started meanwhile has finished the deletion (`sweep-deleted-disks.ts`). */
const FINISHED_ELSEWHERE = new AppError('not_found', 'the disk was deleted meanwhile');

/** The disk whose deletion has begun: hidden from callers, not from the deletion itself. */
async function findDeleting(deps: Deps, accountId: string, diskId: string): Promise<DiskEntry> {
  const entry = await deps.directory.disks.get(accountId, diskId);
  if (entry === undefined) throw FINISHED_ELSEWHERE;
  return entry;
}

/**
 * Deletes a disk with its users and data. It is gone for everybody before its data is: a call that
 * fails half-way may be repeated until it succeeds.
 * @throws AppError `not_found`, `no_capacity`, `unavailable`
 */
export async function deleteDisk(
  deps: Deps,
  disk: { accountId: string; diskId: string },
  { requestId }: RequestContext,
): Promise<void> {
  const { disks } = deps.directory;
  const entry = await disks.get(disk.accountId, disk.diskId);
  if (entry === undefined || !(await disks.beginDelete(entry.record))) {
    throw new AppError('not_found', `disk ${disk.diskId} not found`);
  }
  try {
    const job = { kind: 'disk.delete', payload: disk } as const;
    await callHandler(deps, [entry], job, { requestId }, findDeleting);
  } catch (error) {
    if (error === FINISHED_ELSEWHERE) return;
    throw error;
  }
  await disks.remove(entry.record);
}
