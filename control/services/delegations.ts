import { AppError } from '../../shared/errors.ts';
import type { Delegation } from '../../shared/jobs/jobs.ts';
import type { Deps } from './deps.ts';
import { callHandler, type RequestContext } from './call-handler.ts';
import { findDisk } from './find-disk.ts';

interface DiskOfAccount {
  readonly accountId: string;
  readonly diskId: string;
}

/** Who holds what on the disk; only its handler knows, and without one nobody holds anything. */
export async function listDelegations(
  deps: Deps,
  disk: DiskOfAccount,
  context: RequestContext,
): Promise<readonly Delegation[]> {
  const entry = await findDisk(deps, disk.accountId, disk.diskId);
  if (entry.handler === undefined) return [];
  const job = { kind: 'disk.delegations' as const, payload: disk };
  return (await callHandler(deps, [entry], job, context)).result.delegations;
}

/**
 * Takes a delegation away; the command that holds it is ended, since it counts on being alone.
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
    entry.handler !== undefined &&
    (await callHandler(deps, [entry], job, { requestId })).result.revoked;
  if (revoked) return;
  throw new AppError('not_found', `client ${clientId} has no delegation on inode ${inodeId}`);
}
