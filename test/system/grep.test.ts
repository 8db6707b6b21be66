/* Searches over HTTP: what is found, how a search ends, and what its bounds do. */
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec, missingDiskId } from '../helpers/disks.ts';
import { grep, postGrep } from '../helpers/greps.ts';
import { diskMount, processesMarked, usersOfDisk } from '../helpers/host.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const GiB = 1024 ** 3;

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; tree: string }>;

/** A small tree of many kinds of files. */
const MAKE_TREE = `
mkdir -p src/deep/er empty
printf 'one needle\\nnothing\\ntwo needle' > src/a.txt
printf 'deep needle\\r\\n' > src/deep/b.txt
printf 'hidden needle\\n' > .hidden
printf 'ignored needle\\n' > src/deep/er/ignored; printf 'ignored\\n' > src/deep/er/.gitignore
printf 'needle\\0binary\\n' > binary
printf 'needle\\n' > ./-; printf 'needle\\n' > -e
printf 'na\\303\\257ve needle \\377\\n' > $'bad\\377name'
ln -s src/a.txt link; ln -s /etc outside; ln -s src/deep within
mkfifo fifo
`;

test.before(async (t) => {
  const stack = await Stack.start({ DISK_SIZE_BYTES: String(8 * GiB), EXEC_CPUS: '2' });
  t.context.stack = stack;
  t.context.api = await stack.newClient();
  const { id } = await createDisk(t.context.api);
  await exec(t.context.api, id, MAKE_TREE);
  t.context.tree = id;
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const sorted = (matches: readonly { file: string; line: number; text: string }[]): string[] =>
  matches.map(({ file, line, text }) => `${file}:${line}:${text}`).sort();

test('a recursive search finds what is text, hidden and ignored files too', async (t) => {
  const { api, tree } = t.context;
  const result = await grep(api, tree, { pattern: 'n[e]+dle', recursive: true });
  t.deepEqual(sorted(result.matches), [
    '-:1:needle',
    '-e:1:needle',
    '.hidden:1:hidden needle',
    'bad\u{fffd}name:1:naïve needle \u{fffd}',
    'src/a.txt:1:one needle',
    'src/a.txt:3:two needle',
    'src/deep/b.txt:1:deep needle\r',
    'src/deep/er/ignored:1:ignored needle',
  ]);
  t.is(result.stoppedReason, 'completed');
  t.is(result.filesScanned, 9);
  t.is(result.containersDispatched, 1);
  t.true(result.computeSecondsUsed > 0);
  t.true(result.durationMs >= result.grepMs);
  t.is(result.message, undefined);
});

test('without recursive only the files directly in the directory are searched', async (t) => {
  const { api, tree } = t.context;
  const direct = await grep(api, tree, { directory: '/src/', pattern: 'needle' });
  t.deepEqual(sorted(direct.matches), ['src/a.txt:1:one needle', 'src/a.txt:3:two needle']);
  t.is(direct.filesScanned, 1);
  const empty = await grep(api, tree, { directory: 'empty', pattern: 'needle' });
  t.deepEqual([empty.matches, empty.stoppedReason, empty.filesScanned], [[], 'completed', 0]);
});

test('a directory may be a link that stays on the disk', async (t) => {
  const { api, tree } = t.context;
  const { matches } = await grep(api, tree, { directory: 'within', pattern: 'needle' });
  t.deepEqual(sorted(matches), ['within/b.txt:1:deep needle\r']);
});
