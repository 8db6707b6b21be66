import type { Deps } from '../../region/deps.ts';
import { callDiskHost, type RequestContext } from '../../region/call-disk-host.ts';
import { findDisk } from '../../region/find-disk.ts';

/**
 * Has the disk's manifest rewritten from the directory. Callers answer only after it, so that what
 * they acknowledge survives the loss of Redis.
 */
export async function recordDisk(
  deps: Deps,
  disk: { accountId: string; diskId: string },
  { requestId }: RequestContext,
): Promise<void> {
  const entry = await findDisk(deps, disk.accountId, disk.diskId);
  await callDiskHost(deps, [entry], { kind: 'disk.record', payload: disk }, { requestId });
}
