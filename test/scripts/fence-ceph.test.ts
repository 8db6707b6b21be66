import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmod, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { SYSTEM_LIMITS } from '../../agent/system/limits.ts';
import { processesMarked } from '../helpers/host.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

const script = join(import.meta.dirname, '../../scripts/fence-ceph');

test('a fence leaves nothing behind that waits for a Ceph that is away', async (t) => {
  await using directory = await temporaryDirectory();
  const mark = `mark-${randomBytes(6).toString('hex')}`;
  const ceph = join(directory.path, 'ceph');
  await writeFile(ceph, '#!/bin/sh\nsleep 600\n');
  await chmod(ceph, 0o755);
  const env = { PATH: `${directory.path}:${process.env['PATH']}`, MARK: mark };
  const asAgentsDo = { timeout: SYSTEM_LIMITS.storageFenceMsMax, killSignal: 'SIGKILL' } as const;
  const fencing = promisify(execFile)(script, ['host-0123456789ab'], { env, ...asAgentsDo });
  await t.throwsAsync(fencing);
  t.deepEqual(await processesMarked(mark), []);
});
