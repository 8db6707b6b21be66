/* Searches over HTTP: their results, how they end, and their limits. */
import { randomBytes } from 'node:crypto';
import { chown, mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { Berth, type GrepMatch } from '../../clients/sdk/src/index.ts';
import * as fc from '../helpers/fast-check.ts';
import type { ApiClient } from '../helpers/api.ts';
import { GiB, MiB } from '../../shared/units.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { grep, postGrep } from '../helpers/greps.ts';
import {
  diskContents,
  diskMount,
  hostTraces,
  peakMemoryBytes,
  processesMarked,
  usersOfDisk,
} from '../helpers/host.ts';
import { isFull } from '../helpers/full.ts';
import { makeTree, randomTree, rgMatches, sortedLines } from '../helpers/searches.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const EXEC_SLOTS = 4;

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
  const stack = await Stack.start({
    DISK_SIZE_BYTES: String(8 * GiB),
    EXEC_SLOTS: String(EXEC_SLOTS),
    EXEC_SLOTS_PER_ACCOUNT: String(EXEC_SLOTS),
  });
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

test('a recursive search finds all text files, hidden and ignored ones included', async (t) => {
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

test('results are those of rg -uu, in any tree', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'true');
  let count = 0;
  const property = fc.asyncProperty(randomTree, async (tree) => {
    count += 1;
    const directory = `run ${count}`;
    const root = join(diskContents(stack, id), directory);
    await mkdir(root);
    await makeTree(root, tree);
    const expected = await rgMatches(root, 'needle|^$');
    const result = await grep(api, id, { directory, pattern: 'needle|^$', recursive: true });
    const found = result.matches.map((match) => ({
      ...match,
      file: match.file.slice(directory.length + 1),
    }));
    t.deepEqual(sortedLines(found), sortedLines(expected));
    t.is(result.stoppedReason, 'completed');
  });
  await fc.assert(property, { numRuns: isFull ? 100 : 10 });
});

test('a pattern that is not valid is refused with the reason', async (t) => {
  const { api, tree } = t.context;
  for (const [pattern, message] of [
    ['(', /Unmatched \(/u],
    [String.raw`(a)\2`, /Invalid back reference/u],
    ['[z-a]', /Invalid range end/u],
    ['a{100000}{100}', /too big/u],
    ['(?=a)', /no \(\?/u],
    [String.raw`\p{L}`, /no meaning/u],
  ] as const) {
    const { status, body } = await postGrep(api, tree, { pattern, recursive: true });
    t.deepEqual([status, body.code], [400, 'bad_request'], pattern);
    t.regex(body.error ?? '', message);
  }
});

test('a pattern is one of GNU grep -E', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const lines = ['abab {', 'word', 'swords', 'x{2', 'naïve été', 'a1', 'if (x) {'];
  await exec(api, id, `cat > file <<'END'\n${lines.join('\n')}\nEND\nprintf 'abab\\0' > binary`);
  for (const [pattern, found] of [
    [String.raw`^(ab)\1`, [0]],
    [String.raw`\<word\>`, [1]],
    [String.raw`\bword`, [1]],
    [String.raw`{$`, [0, 6]],
    [String.raw`\{|x{2`, [0, 3, 6]],
    ['^[[:alpha:]]+ [[:alpha:]]+$', [4]],
    [String.raw`^\w+ [^e]`, [0, 4, 6]],
    ['word$\na1', [1, 5]],
    [String.raw`[a-z]\d`, [5]],
    ['(?i)^(A)B', [0]],
  ] as const) {
    const { matches, stoppedReason } = await grep(api, id, { pattern });
    const texts = matches.map(({ text }) => text);
    t.deepEqual([texts, stoppedReason], [found.map((index) => lines[index]), 'completed'], pattern);
  }
});

test('any pattern reaches the search engine as it was sent', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const long = 'x'.repeat(65_535);
  const texts = [
    `it's "$HOME" \`id\``,
    '-e',
    '--help',
    'ü\u{1f600}',
    "'".repeat(30_000),
    `${long}y`,
  ];
  const lines = texts.map((text) => Buffer.from(`${text}\n`).toString('base64')).join('\n');
  await exec(api, id, `base64 -d > file <<'END'\n${lines}\nEND`);
  for (const text of texts) {
    const pattern = text.replaceAll(/[$\\`"]/gu, String.raw`\$&`).replace(/\\(["`])/gu, '$1');
    const { matches } = await grep(api, id, { pattern: `^${pattern}$`.slice(0, 65_536) });
    t.is(matches.length, 1, text.slice(0, 20));
  }
});

const cannotBeListed = test.macro<[directory: string]>({
  async exec(t, directory) {
    const { api, tree } = t.context;
    const result = await grep(api, tree, { directory, pattern: 'root' });
    t.deepEqual([result.stoppedReason, result.matches], ['list_failed', []]);
    t.truthy(result.message);
    t.is(result.filesScanned, 0);
  },
  title: (given = '') => `a directory that cannot be listed: ${given}`,
});
test('missing', cannotBeListed, 'nowhere/at/all');
test('a file', cannotBeListed, 'src/a.txt');
test('a FIFO', cannotBeListed, 'fifo');
test('a link that leads out', cannotBeListed, 'outside');
test('below a link that leads out', cannotBeListed, 'outside/ssh');

test('a search stops at maxResults', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'for i in {1..300}; do yes needle | head -n 100 > f$i; done');
  for (const maxResults of [1, 10, 10_000, 20_000]) {
    const result = await grep(api, id, { pattern: 'needle', maxResults });
    const wanted = Math.min(maxResults, 10_000);
    t.deepEqual([result.matches.length, result.stoppedReason], [wanted, 'max_results']);
  }
  const some = await grep(api, id, { pattern: 'needle' });
  t.is(some.matches.length, 1000);
  const all = await grep(api, id, { pattern: '^needle$', concurrency: 1, maxResults: 10_000 });
  t.is(all.matches.length, 10_000);
});

const newMark = (): string => `BERTH-${randomBytes(8).toString('hex')}`;

const isSearching = (mark: string) => async (): Promise<boolean> =>
  (await processesMarked(mark)).some((line) => line.includes('ld.so'));

/** A sparse file that takes longer to read than any search may last. */
const ENDLESS = 'truncate --size=8T endless';

async function endlessDisk(api: ApiClient): Promise<string> {
  const { id } = await createDisk(api);
  await exec(api, id, `echo needle > file; ${ENDLESS}`);
  return id;
}

test.serial('a search ends at its deadline with the matches so far', async (t) => {
  const { api, stack } = t.context;
  const id = await endlessDisk(api);
  const mark = newMark();
  const result = await grep(api, id, { pattern: `needle|${mark}`, maxDurationSeconds: 1 });
  t.is(result.stoppedReason, 'deadline');
  t.true(result.durationMs >= 1000);
  t.true(result.computeSecondsUsed > 0);
  t.deepEqual(await processesMarked(mark), []);
  t.deepEqual(await usersOfDisk(diskMount(stack, id)), []);
});

test.serial(
  'a search sees only its directory: read-only, without links, devices or programs',
  async (t) => {
    const { api } = t.context;
    const id = await endlessDisk(api);
    const mark = newMark();
    const hangUp = new AbortController();
    const call = postGrep(api, id, { pattern: mark }, hangUp.signal);
    const pid = await waitFor('the search', async () => {
      const found = await processesMarked(mark);
      return found.find((line) => line.includes(' /.berth/search '))?.split(' ')[0];
    });
    const table = await readFile(`/proc/${pid}/mountinfo`, 'utf8');
    const mounts = table.split('\n').filter((line) => line.includes(' /mnt/service'));
    const options = mounts.at(-1)?.split(' ')[5]?.split(',') ?? [];
    for (const option of ['ro', 'nosuid', 'nodev', 'noexec', 'nosymfollow']) {
      t.true(options.includes(option), option);
    }
    const network = await readFile(`/proc/${pid}/net/dev`, 'utf8');
    t.deepEqual(
      network.match(/^ *\w+(?=:)/gmu)?.map((name) => name.trim()),
      ['lo'],
    );
    hangUp.abort();
    await t.throwsAsync(call, { name: 'AbortError' });
  },
);

test.serial('matches come while the search goes on, and the caller may leave then', async (t) => {
  const { api, stack } = t.context;
  const id = await endlessDisk(api);
  await exec(api, id, 'mkdir many; for i in {1..500}; do echo needle > many/$i; done');
  const berth = new Berth({ baseUrl: stack.baseUrl, apiKey: api.key });
  const disk = await berth.disks.get(id);
  const mark = newMark();
  const search = { directory: '', pattern: `needle|${mark}`, recursive: true };
  const leave = new AbortController();
  const first = Promise.withResolvers<string>();
  const onMatches = ([match]: GrepMatch[]): void => first.resolve(match?.text ?? '');
  const call = disk.grep(search, { onMatches, signal: leave.signal });
  t.is(await Promise.race([first.promise, call]), 'needle');
  t.not((await processesMarked(mark)).length, 0);
  leave.abort(new Error('left'));
  await t.throwsAsync(call, { message: 'left' });
  await waitFor('its end', async () => (await processesMarked(mark)).length === 0);
});

test('a search in parts finds what one without finds, and is refused like it', async (t) => {
  const { api, stack, tree } = t.context;
  const disk = await new Berth({ baseUrl: stack.baseUrl, apiKey: api.key }).disks.get(tree);
  const search = { directory: '', pattern: 'needle', recursive: true };
  const told: GrepMatch[] = [];
  const onMatches = (matches: GrepMatch[]): void => void told.push(...matches);
  const result = await disk.grep(search, { onMatches });
  const { matches, filesScanned } = await grep(api, tree, search);
  t.deepEqual(sorted(result.matches), sorted(matches));
  t.deepEqual(told, result.matches);
  t.like(result, { stoppedReason: 'completed', filesScanned });
  const few = await disk.grep({ ...search, maxResults: 2 }, { onMatches });
  t.deepEqual([few.matches.length, few.stoppedReason], [2, 'max_results']);
  await t.throwsAsync(disk.grep({ ...search, pattern: '(' }, { onMatches }), {
    code: 'bad_request',
    message: /Unmatched \(/u,
  });
  const none = await disk.grep({ ...search, directory: 'missing' }, { onMatches });
  t.deepEqual([none.matches, none.stoppedReason], [[], 'list_failed']);
});

test.serial('a caller who hangs up ends all processes of the search', async (t) => {
  const { api, stack } = t.context;
  const id = await endlessDisk(api);
  const mark = newMark();
  const hangUp = new AbortController();
  const call = postGrep(api, id, { pattern: mark }, hangUp.signal);
  await waitFor('rg', isSearching(mark));
  hangUp.abort();
  await t.throwsAsync(call, { name: 'AbortError' });
  await waitFor('its end', async () => (await processesMarked(mark)).length === 0);
  await waitFor('the disk', async () => (await usersOfDisk(diskMount(stack, id))).length === 0);
});

test.serial('a disk is deleted under a search', async (t) => {
  const { api } = t.context;
  const id = await endlessDisk(api);
  const mark = newMark();
  const call = postGrep(api, id, { pattern: mark });
  await waitFor('rg', isSearching(mark));
  t.is((await api.call('DELETE', `/api/disks/${id}`)).status, 200);
  const { status, body } = await call;
  t.deepEqual([status, body.code], [404, 'not_found']);
  t.deepEqual(await processesMarked(mark), []);
});

test('accounts search their own disks at the same time', async (t) => {
  const { stack } = t.context;
  const accounts = await Promise.all(
    ['first', 'second'].map(async (word) => {
      const api = await stack.newClient();
      const { id } = await createDisk(api);
      await exec(api, id, `for i in {1..50}; do echo ${word} needle > f$i; done`);
      return { api, id, word };
    }),
  );
  const searches = accounts.flatMap(({ api, id, word }) =>
    Array.from({ length: 5 }, async () => {
      const { matches } = await grep(api, id, { pattern: 'needle' });
      return matches.length === 50 && matches.every(({ text }) => text === `${word} needle`);
    }),
  );
  t.deepEqual(
    await Promise.all(searches),
    Array.from({ length: 10 }, () => true),
  );
  const [{ api }, { id }] = accounts as [(typeof accounts)[0], (typeof accounts)[0]];
  t.is((await postGrep(api, id, { pattern: 'needle' })).status, 404);
});

test('a search sees what a running command has written', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const running = exec(
    api,
    id,
    'echo live > file; until [ -e stop ]; do sleep 0.02; done; cat file',
  );
  await waitFor(
    'the line',
    async () => (await grep(api, id, { pattern: 'live' })).matches.length === 1,
  );
  await exec(api, id, 'echo live again >> file; touch stop');
  t.is((await grep(api, id, { pattern: 'live' })).matches.length, 2);
  t.is((await running).stdout, 'live\nlive again\n');
});

test('a file with an unmapped owner is searched if others may read it, else it is named', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo needle > private; echo needle > public; chmod 600 private');
  for (const name of ['private', 'public']) {
    await chown(join(diskContents(stack, id), name), 2 ** 31, 2 ** 31);
  }
  const result = await grep(api, id, { pattern: 'needle' });
  t.deepEqual([result.stoppedReason, result.matches.length], ['incomplete', 1]);
  t.is(result.matches[0]?.file, 'public');
  t.regex(result.message ?? '', /private/u);
});

test('100,000 files are searched', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const script = `
import os
for d in range(100):
    os.makedirs(f'{d % 10}/{d}')
    for f in range(1000):
        with open(f'{d % 10}/{d}/{f}', 'w') as file: file.write('needle' if f == 7 else '')`;
  await exec(api, id, `python3 -c "${script}"`);
  const result = await grep(api, id, { pattern: 'needle', recursive: true });
  t.deepEqual([result.matches.length, result.filesScanned], [100, 100_000]);
  t.is(result.stoppedReason, 'completed');
});

test('a line longer than the memory limit loses only its own file', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  await exec(
    api,
    id,
    `for i in {1..20}; do echo needle > f$i; done
    head -c ${GiB} /dev/zero | tr '\\0' x > line`,
  );
  const result = await grep(api, id, { pattern: 'needle' });
  t.deepEqual([result.matches.length, result.stoppedReason], [20, 'incomplete']);
  t.regex(result.message ?? '', /line: cannot be searched|memory/u);
  await exec(api, id, 'rm line');
});

test.serial("matches are bounded in size, and so is the agent's memory", async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, `head -c ${64 * MiB} /dev/zero | tr '\\0' '\\1' | fold -w 100000 > lines`);
  const before = await peakMemoryBytes(stack.agent.pid);
  const result = await grep(api, id, { pattern: '.', maxResults: 10_000 });
  const growth = (await peakMemoryBytes(stack.agent.pid)) - before;
  t.is(result.stoppedReason, 'max_results');
  t.true(result.matches.length > 10 && result.matches.every(({ truncated }) => truncated === true));
  t.true(growth < 64 * MiB, `${growth}`);
});

test.serial('a file of 4 GiB is searched', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  await exec(
    api,
    id,
    `yes 'some text of a line that is long enough' | head -c ${MiB} > piece
    for i in {1..64}; do cat piece; done > more; for i in {1..64}; do cat more; done > file
    echo needle >> file`,
  );
  const before = await peakMemoryBytes(stack.agent.pid);
  const result = await grep(api, id, { pattern: 'needle' });
  t.deepEqual([result.matches.length, result.stoppedReason], [1, 'completed']);
  const slow = await grep(api, id, { pattern: '([a-z]+ ){6}z', maxDurationSeconds: 1 });
  t.is(slow.stoppedReason, 'deadline');
  t.true((await peakMemoryBytes(stack.agent.pid)) - before < 64 * MiB);
});

test.serial('a deadline that passes while a search waits for its turn answers 200', async (t) => {
  const { api, tree } = t.context;
  const mark = newMark();
  const path = `/api/disks/${tree}/exec`;
  const hangUp = new AbortController();
  const command = `export MARK=${mark}; sleep 1000`;
  const ahead = Array.from({ length: EXEC_SLOTS }, () =>
    api.call('POST', path, { command }, {}, hangUp.signal),
  );
  await waitFor('the commands', async () => {
    const found = await processesMarked(mark);
    return found.filter((line) => /^\d+ sleep /u.test(line)).length === EXEC_SLOTS;
  });
  const result = await grep(api, tree, { pattern: 'needle', maxDurationSeconds: 1 });
  t.deepEqual([result.stoppedReason, result.containersDispatched], ['deadline', 0]);
  t.deepEqual([result.matches, result.filesScanned], [[], 0]);
  hangUp.abort();
  await Promise.allSettled(ahead);
});

test.serial('a host that does not answer in time counts as a deadline', async (t) => {
  const { api, stack, tree } = t.context;
  await grep(api, tree, { pattern: 'needle' });
  process.kill(stack.agent.pid, 'SIGSTOP');
  try {
    const result = await grep(api, tree, { pattern: 'needle', maxDurationSeconds: 1 });
    t.deepEqual([result.stoppedReason, result.containersDispatched], ['deadline', 0]);
  } finally {
    process.kill(stack.agent.pid, 'SIGCONT');
  }
  await waitFor('the host', async () => {
    const { status } = await postGrep(api, tree, { pattern: 'needle' });
    return status === 200;
  });
});

(isFull ? test.serial : test.serial.skip)('an agent that shuts down in mid-search', async (t) => {
  const { api, stack } = t.context;
  const id = await endlessDisk(api);
  const mark = newMark();
  const call = postGrep(api, id, { pattern: mark });
  await waitFor('rg', isSearching(mark));
  t.is(await stack.agent.stop(), 0);
  const { status, body } = await call;
  t.deepEqual([status, body.code], [503, 'unavailable']);
  t.deepEqual(await processesMarked(mark), []);
  await stack.startAgent();
});

test.serial('the agent is killed during a search: 503, and nothing is left behind', async (t) => {
  const { api, stack } = t.context;
  const id = await endlessDisk(api);
  const mark = newMark();
  const call = postGrep(api, id, { pattern: mark });
  await waitFor('rg', isSearching(mark));
  const before = await hostTraces(stack);
  await stack.agent.stop('SIGKILL');
  const { status, body, headers } = await call;
  t.deepEqual([status, body.code], [503, 'unavailable']);
  t.true(Number(headers.get('retry-after')) > 0);
  await waitFor('its end', async () => (await processesMarked(mark)).length === 0);
  await stack.startAgent();
  const after = new Set(await hostTraces(stack));
  t.deepEqual(
    before.filter((trace) => after.has(trace)),
    [],
  );
  t.is((await grep(api, id, { pattern: 'needle', maxResults: 1 })).matches.length, 1);
});
