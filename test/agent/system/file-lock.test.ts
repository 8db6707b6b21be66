/* Locks of files, on storage that hangs. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { takeLock } from '../../../agent/system/file-lock.ts';
import { FrozenStorage } from '../../helpers/frozen-storage.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

test('a lock is given up without holding up the rest, also while the storage hangs', async (t) => {
  await using temporary = await temporaryDirectory();
  const directory = join(temporary.path, 'storage');
  await mkdir(directory);
  await using storage = await FrozenStorage.mount(directory);
  const path = join(storage.directory, 'lock');
  const lock = await takeLock(path);
  await t.throwsAsync(takeLock(path), { code: 'EAGAIN' });
  storage.freeze();
  const ended = lock[Symbol.asyncDispose]();
  storage.thaw(); // Never reached if the call above waits for the storage.
  await ended;
  await using again = await takeLock(path);
  t.truthy(again);
});
