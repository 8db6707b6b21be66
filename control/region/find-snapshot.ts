import { AppError } from '../../shared/errors.ts';
import type { SnapshotRecord } from '../../shared/schemas/snapshot-record.ts';
import type { Deps } from './deps.ts';
import { isUuid } from './find-sandbox.ts';

/**
 * Finds a snapshot of the account, as its host last published it.
 * @param idOrName an id counts before a name that is spelt like one
 * @throws AppError `not_found`, the same for a missing one and another account's
 */
export async function findSnapshot(
  { directory: { snapshots } }: Deps,
  accountId: string,
  idOrName: string,
): Promise<SnapshotRecord> {
  const byId = isUuid(idOrName) ? await snapshots.get(accountId, idOrName) : undefined;
  const record = byId ?? (await snapshots.findByName(accountId, idOrName));
  if (record === undefined) throw new AppError('not_found', `snapshot ${idOrName} not found`);
  return record;
}
