import test from 'ava';
import { AppError } from '../../shared/errors.ts';
import { createLogger } from '../../shared/log.ts';
import { StorageWatch } from '../../shared/storage-watch.ts';
import { waitFor } from '../helpers/wait.ts';

test('space is told for each directory, and of all the least', async (t) => {
  const directories = ['/', '/.', '/proc'];
  const storage = new StorageWatch({
    ...{ directories, reserveBytes: 1, log: createLogger('test', {}) },
    refusal: new AppError('host_full', 'full'),
  });
  t.teardown(() => storage.close());
  await waitFor('a check', async () => storage.spaceOf('/') !== undefined);
  const [root, same, proc] = directories.map((directory) => storage.spaceOf(directory));
  t.is(same?.device, root?.device);
  t.not(proc?.device, root?.device);
  t.is(proc?.freeBytes, 0); // procfs takes no files.
  t.is(storage.freeBytes, 0);
  t.true((root?.freeBytes ?? 0) > 0);
  t.is(storage.spaceOf('/another'), undefined);
});
