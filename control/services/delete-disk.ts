import { AppError } from '../../shared/errors.ts';
import type { Deps } from '../deps.ts';
import { callHandler, type RequestContext } from './call-handler.ts';

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
  await callHandler(deps, [entry], { kind: 'disk.delete', payload: disk }, { requestId });
  await disks.remove(entry.record);
}
