import type { Directory } from '../../shared/directory/directory.ts';
import { toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';
import type { DiskFiles } from './disk-files.ts';
import type { DiskRegistry } from './disk-registry.ts';

/**
 * Finishes deletions that a crash cut off. Only what the directory itself has as `deleting` goes:
 * a disk that the directory does not know is kept, since the directory may have been lost.
 */
export async function sweepDeletedDisks(
  files: DiskFiles,
  directory: Directory,
  disks: DiskRegistry,
  log: Logger,
): Promise<void> {
  for (const diskId of await files.list()) {
    try {
      const { accountId } = (await files.readManifest(diskId)).disk;
      const entry = await directory.disks.get(accountId, diskId);
      if (entry?.record.status !== 'deleting') continue;
      log.info({ diskId }, 'sweep:diskDeleted');
      await disks.delete({ accountId, diskId });
      await directory.disks.remove(entry.record);
    } catch (error) {
      log.warn({ diskId, err: toError(error) }, 'sweep:diskSkipped');
    }
  }
}
