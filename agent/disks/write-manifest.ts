import type { Directory } from '../../shared/directory/directory.ts';
import type { DiskRef } from './disk-backing.ts';
import type { DiskFiles } from './disk-files.ts';
import type { DiskStorage } from './disk-storage.ts';

/** Writes the directory's current record of a disk into its manifest. Idempotent. */
export async function writeManifest(
  disk: DiskRef,
  { directory, files }: { readonly directory: Directory; readonly files: DiskFiles },
  storage: DiskStorage,
): Promise<void> {
  const read = (): ReturnType<typeof directory.disks.get> =>
    directory.disks.get(disk.accountId, disk.diskId);
  let written = 0;
  // Another host may write an older record at the same time: repeat until the record written last
  // is still the current one.
  for (let entry = await read(); entry !== undefined; entry = await read()) {
    if (entry.record.revision === written || entry.record.status === 'deleting') return;
    const { record } = entry;
    await storage.work(() => files.writeManifest(record));
    written = record.revision;
  }
}
