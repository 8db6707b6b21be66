import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { copyAtRest, copyDisk, makeDisk } from '../../../../agent/machines/runc/sandbox-disk.ts';
import { run } from '../../../../agent/system/spawn.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';
import { waitFor } from '../../../helpers/wait.ts';

test('a disk at rest is copied while another copy of it is being made', async (t) => {
  await using directory = await temporaryDirectory();
  const at = (name: string): string => join(directory.path, name);
  const [begun, end] = [at('begun'), at('end')];
  const [emptyDisk, source, copy] = [at('empty'), at('source'), at('copy')];
  await writeFile(emptyDisk, 'a disk');
  await makeDisk(source, { emptyDisk, imageDir: directory.path });
  const command = 'touch "$1"; until [ -e "$2" ]; do sleep 0.01; done';
  const copying = run('sh', ['-c', command, 'sh', begun, end], {
    sharedLock: join(source, 'upper.ext4'),
  });
  await waitFor('the other copy to begin', async () => existsSync(begun));
  await copyDisk(source, copy, copyAtRest);
  await writeFile(end, '');
  await copying;
  t.is(await readFile(join(copy, 'upper.ext4'), 'utf8'), 'a disk');
});
