import { open, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { renewFiles } from '../../../agent/system/renew-files.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

test('files keep their contents, and what a former owner has open is none of them any more', async (t) => {
  await using directory = await temporaryDirectory();
  const names = Array.from({ length: 40 }, (_, i) => `file-${String(i).padStart(2, '0')}`);
  for (const name of names) await writeFile(join(directory.path, name), name);
  await writeFile(join(directory.path, '.left-over'), 'half a copy');
  await using former = await open(join(directory.path, 'file-07'), 'a');
  await renewFiles(directory.path);
  await former.writeFile(' too late');
  t.deepEqual((await readdir(directory.path)).toSorted(), names);
  for (const name of names) t.is(await readFile(join(directory.path, name), 'utf8'), name);
});

test('a directory that is not there has no files to renew', async (t) => {
  await using directory = await temporaryDirectory();
  await t.notThrowsAsync(renewFiles(join(directory.path, 'absent')));
});
