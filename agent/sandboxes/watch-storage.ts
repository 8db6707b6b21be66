import { AppError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';
import { StorageWatch } from '../../shared/storage-watch.ts';
import type { Journal } from '../system/journal/journal.ts';
import type { SharedStorage } from './moving/shared-storage.ts';

/** Watches the storage of sandboxes. @param shared undefined: they lie in the data directory */
export const watchSandboxes = (
  {
    dataDir,
    journal,
    reserveBytes,
    log,
  }: {
    readonly dataDir: string;
    readonly journal: Pick<Journal, 'check'>;
    readonly reserveBytes: number;
    readonly log: Logger;
  },
  shared: SharedStorage | undefined,
): StorageWatch =>
  new StorageWatch({
    name: 'the storage of sandboxes',
    directories: [dataDir, ...(shared === undefined ? [] : [shared.paths.directory])],
    check: async () => {
      await shared?.check();
      await journal.check();
    },
    reserveBytes,
    refusal: new AppError('host_full', 'the storage of the host is almost full; try again'),
    log,
  });
