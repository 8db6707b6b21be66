import { AppError } from '../../../shared/errors.ts';
import type { Delegation } from '../../../shared/jobs/disk-kinds.ts';
import type { Deps } from '../../region/deps.ts';
import { callDiskHost, type RequestContext } from '../../region/call-disk-host.ts';
import { findDisk } from '../../region/find-disk.ts';

interface DiskOfAccount {
  readonly accountId: string;
  readonly diskId: string;
}

/** Lists the disk's delegations. Only its leaseHolder knows them; a disk without one has none. */
export async function listDelegations(
  deps: Deps,
  disk: DiskOfAccount,
  context: RequestContext,
): Promise<readonly Delegation[]> {
  const entry = await findDisk(deps, disk.accountId, disk.diskId);
  if (entry.leaseHolder === undefined) return [];
  const job = { kind: 'disk.delegations' as const, payload: disk };
  return (await callDiskHost(deps, [entry], job, context)).result.delegations;
}

/**
 * Revokes a delegation and ends the command that holds it, which relies on exclusive use.
 * @throws AppError `not_found`
 */
export async function revokeDelegation(
  deps: Deps,
  disk: DiskOfAccount,
  delegation: { clientId: string; inodeId: number },
  { requestId }: RequestContext,
): Promise<void> {
  const { clientId, inodeId } = delegation;
  const entry = await findDisk(deps, disk.accountId, disk.diskId);
  const job = { kind: 'disk.revoke' as const, payload: { ...disk, clientId, inodeId } };
  const revoked =
    entry.leaseHolder !== undefined &&
    (await callDiskHost(deps, [entry], job, { requestId })).result.revoked;
  if (revoked) return;
  throw new AppError('not_found', `client ${clientId} has no delegation on inode ${inodeId}`);
}
