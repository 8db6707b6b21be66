import type { DiskEntry } from '../../shared/directory/disk-record.ts';
import { AppError } from '../../shared/errors.ts';
import type { Deps } from './deps.ts';

/**
 * A disk of the account that can be used.
 * @throws AppError `not_found`, alike for a missing disk, a deleted one and another account's
 */
export async function findDisk(deps: Deps, accountId: string, diskId: string): Promise<DiskEntry> {
  const entry = await deps.directory.disks.get(accountId, diskId);
  if (entry === undefined || entry.record.status === 'deleting') {
    throw new AppError('not_found', `disk ${diskId} not found`);
  }
  return entry;
}
