import { repeatInBackground } from '../../shared/background.ts';
import type { Directory } from '../../shared/directory/directory.ts';
import type { DiskEntry } from '../../shared/directory/disk-record.ts';
import { toError } from '../../shared/errors.ts';
import { DISK_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import type { DiskFiles } from './disk-files.ts';
import type { DiskRegistry } from './disk-registry.ts';

export interface DiskSweepDeps {
  readonly hostId: string;
  readonly files: DiskFiles;
  readonly directory: Directory;
  readonly disks: DiskRegistry;
  readonly log: Logger;
}

/**
 * Finishes deletions that were cut off or have failed, again and again until they succeed: callers
 * were told that such a disk is gone.
 * @returns stops it
 */
export function sweepDeletedDisks(deps: DiskSweepDeps): () => void {
  let isFirst = true;
  return repeatInBackground('disk.sweepDeleted', DISK_LIMITS.diskSweepMs, async () => {
    // Before the rest, which fails while the directory of disks could not be made.
    await deps.files.removeLeftovers().catch((error: unknown) => {
      deps.log.warn({ err: toError(error) }, 'sweep:leftoversFailed');
    });
    if (isFirst) await sweepFiles(deps);
    isFirst = false;
    await sweepNoted(deps);
  });
}

/**
 * Checks every disk on the storage: the directory may have lost its note of a deletion. Removes
 * only disks that the directory itself lists as `deleting`. A disk that it does not know is kept,
 * since it may have lost that, too.
 */
async function sweepFiles(deps: DiskSweepDeps): Promise<void> {
  const { files, directory } = deps;
  for (const diskId of await files.list()) {
    await trySweep(deps, diskId, async () => {
      const { accountId } = (await files.readManifest(diskId)).disk;
      const entry = await directory.disks.get(accountId, diskId);
      if (entry?.record.status === 'deleting') await finish(deps, entry);
    });
  }
}

async function sweepNoted(deps: DiskSweepDeps): Promise<void> {
  const { hostId, directory } = deps;
  const { deletions } = directory.disks;
  for (const disk of await deletions.list()) {
    await trySweep(deps, disk.id, async () => {
      const entry = await directory.disks.get(disk.accountId, disk.id);
      if (entry?.record.status !== 'deleting') return deletions.forgetIfOld(disk);
      const { leaseHolder = hostId } = entry;
      if (leaseHolder === hostId) await finish(deps, entry); // Another host deletes its own disks.
    });
  }
}

async function finish({ directory, disks, log }: DiskSweepDeps, entry: DiskEntry): Promise<void> {
  const { accountId, id: diskId } = entry.record;
  await disks.delete({ accountId, diskId });
  await directory.disks.remove(entry.record);
  log.info({ diskId }, 'sweep:diskDeleted');
}

async function trySweep(
  { log }: DiskSweepDeps,
  diskId: string,
  sweep: () => Promise<void>,
): Promise<void> {
  try {
    await sweep();
  } catch (error) {
    log.warn({ diskId, err: toError(error) }, 'sweep:diskSkipped');
  }
}
