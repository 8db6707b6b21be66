import { execFile } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { hydratePath } from '../../../../agent/native/native.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

test('the file system of the host is not watched in place of a disk that is unmounted', async (t) => {
  await using temporary = await temporaryDirectory();
  const directory = temporary.path;
  const mount = join(directory, 'mount');
  const group = join(directory, 'cgroup.procs'); // A file does: no group is needed to fail.
  await mkdir(mount);
  await writeFile(group, '');
  const args = [mount, join(directory, 'socket'), group];
  const { code, output } = await new Promise<{ code: unknown; output: string }>((resolve) => {
    execFile(hydratePath, args, { timeout: 10_000, killSignal: 'SIGKILL' }, (error, out, err) =>
      resolve({ code: error?.code, output: out + err }),
    );
  });
  t.is(code, 1);
  t.is(output.trim(), `${mount}: Invalid argument`);
});
