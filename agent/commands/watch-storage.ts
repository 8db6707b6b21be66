import { AppError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';
import { StorageWatch } from '../../shared/storage-watch.ts';
import type { Journal } from '../system/journal/journal.ts';
import type { RegionStorage } from '../system/region-storage.ts';
import type { ExecRegistry } from './exec-registry.ts';

/**
 * Watches the storage of disks, images and commands on disks. That of sandboxes has a watch of its
 * own, so that storage which fails or hangs refuses only the work that needs it.
 * @returns `guard` has the commands of a registry ended when the storage is about to run full
 */
export function watchDisks({
  dataDir,
  region,
  journal,
  storageReserveBytes: reserveBytes,
  log,
}: {
  readonly dataDir: string;
  readonly region: RegionStorage;
  readonly journal: Pick<Journal, 'check'>;
  readonly storageReserveBytes: number;
  readonly log: Logger;
}): { readonly storage: StorageWatch; readonly guard: (execs: ExecRegistry) => void } {
  let guarded: ExecRegistry | undefined;
  const storage = new StorageWatch({
    name: 'the storage',
    directories: [dataDir, region.directory],
    check: async () => {
      await region.check();
      await journal.check();
    },
    reserveBytes,
    refusal: new AppError('host_full', 'the storage of the host is almost full; try again'),
    // Disks are sparse files: when the storage is full, writes that a disk has already accepted
    // fail, and its file system breaks.
    onCritical: () => {
      const reason = 'the storage of the host ran full; the command was ended';
      guarded?.endWriters(new AppError('outcome_unknown', reason));
    },
    log,
  });
  return { storage, guard: (execs) => (guarded = execs) };
}
