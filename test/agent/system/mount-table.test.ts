import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { mountsBelow } from '../../../agent/system/mount-table.ts';

const run = promisify(execFile);

test('mounts are found by their names, whatever is in them, the deepest first', async (t) => {
  const root = await mkdtemp(join(tmpdir(), 'berth-test-'));
  t.teardown(() => rm(root, { recursive: true }));
  const name = fc
    .string({ unit: fc.oneof(fc.constantFrom(...' \t\n\\#0134é'.split('')), fc.string()) })
    .map((text) => text.toWellFormed().replaceAll(/[/\0]/gu, ''))
    .filter((text) => text !== '' && !/^\.\.?$/u.test(text) && Buffer.byteLength(text) < 200);
  await fc.assert(
    fc.asyncProperty(name, name, async (outer, inner) => {
      const targets = [join(root, outer), join(root, outer, inner)];
      try {
        for (const target of targets) {
          await mkdir(target);
          await run('mount', ['-t', 'tmpfs', 'none', target]);
        }
        t.deepEqual(await mountsBelow(root), targets.toReversed());
        t.deepEqual(await mountsBelow(`${root}x`), []);
      } finally {
        for (const target of targets.toReversed()) {
          await run('umount', [target]).catch(() => undefined);
        }
        await rm(targets[0] ?? '', { recursive: true, force: true });
      }
    }),
    { numRuns: 20 },
  );
});
