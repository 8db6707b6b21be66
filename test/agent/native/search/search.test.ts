/*
 * The search program, run directly on trees of the test's own.
 */
import { execFile } from 'node:child_process';
import { chmod, mkdir, rename, symlink, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import * as fc from '../../../helpers/fast-check.ts';
import { processesMarked } from '../../../helpers/host.ts';
import {
  grepMatches,
  makeTree,
  randomTree,
  rgMatches,
  sortedLines,
  type TreeEntry,
} from '../../../helpers/searches.ts';
import { ownTools, search } from '../../../helpers/search-program.ts';
import { buildsOf } from '../../../helpers/program-builds.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';
import { KiB, MiB } from '../../../../shared/units.ts';
import { isFull } from '../../../helpers/full.ts';

const builds = await buildsOf('search');

const needleOf = (bytes: number): string => 'needle'.padEnd(bytes, 'x');
const lines = (count: number, text: string): string => `${text}\n`.repeat(count);

for (const { name, path } of builds) {
  test(`${name} finds what rg -uu finds, in any tree`, async (t) => {
    const property = fc.asyncProperty(
      randomTree,
      fc.constantFrom('needle', 'n.*e', '^', '[^a]$', '(?i)NEEDLE\\b', '\\*|é', '\\x00'),
      fc.integer({ min: 1, max: 5 }),
      fc.boolean(),
      async (tree, pattern, workers, recursive) => {
        await using root = await temporaryDirectory();
        await makeTree(root.path, tree);
        const depth = recursive ? [] : ['--max-depth', '1'];
        const expected = await rgMatches(root.path, pattern, depth);
        const found = await search(path, root.path, pattern, { workers, recursive });
        t.deepEqual([found.code, found.reason, found.problem], [0, 'completed', undefined]);
        t.deepEqual(sortedLines(found.matches), sortedLines(expected));
      },
    );
    await fc.assert(property, { numRuns: isFull ? 200 : 40 });
  });

  test(`${name} skips a binary file whole, however late it shows`, async (t) => {
    await using root = await temporaryDirectory();
    const late = `${lines(100, 'needle')}${lines(100_000, 'hay')}\0\n`;
    await writeFile(join(root.path, 'a-late'), late);
    await writeFile(join(root.path, 'b-late-and-found'), `${late}needle\n`);
    await writeFile(join(root.path, 'c-text'), 'needle\n');
    await writeFile(join(root.path, 'd-early'), '\0needle\n');
    const { matches, reason, filesScanned } = await search(path, root.path, 'needle');
    t.deepEqual(sortedLines(matches), [JSON.stringify(['c-text', 1, 'needle'])]);
    t.deepEqual([reason, filesScanned], ['completed', 4]);
  });

  test(`${name} keeps what it has of a binary file that shows after 1 MiB of matches`, async (t) => {
    await using root = await temporaryDirectory();
    const long = 'needle'.padEnd(20_000, 'x');
    await writeFile(join(root.path, 'file'), `${lines(80, long)}\0needle\n`);
    const { matches, reason } = await search(path, root.path, 'needle');
    t.true(matches.length > 40 && matches.length < 80, String(matches.length));
    t.is(reason, 'completed');
  });

  test(`${name} cuts long lines between characters and says so`, async (t) => {
    await using root = await temporaryDirectory();
    const wide = `needle${'é'.repeat(64 * KiB)}`;
    const cut = `needlex${'é'.repeat(64 * KiB)}`;
    const all = [
      needleOf(64 * KiB - 1),
      needleOf(64 * KiB),
      needleOf(64 * KiB + 1),
      needleOf(MiB),
      wide,
      cut,
    ];
    await writeFile(join(root.path, 'file'), `${all.join('\n')}\nneedle`);
    const { matches, reason } = await search(path, root.path, 'needle');
    t.is(reason, 'completed');
    t.deepEqual(
      matches.map(({ line, text: found, truncated }) => [
        line,
        Buffer.byteLength(found),
        truncated,
      ]),
      [
        [1, 64 * KiB - 1, undefined],
        [2, 64 * KiB, undefined],
        [3, 64 * KiB, true],
        [4, 64 * KiB, true],
        [5, 64 * KiB, true],
        [6, 64 * KiB - 1, true],
        [7, 6, undefined],
      ],
    );
    t.true(wide.startsWith(matches[4]?.text ?? '?') && cut.startsWith(matches[5]?.text ?? '?'));
  });

  for (const [what, pattern, message] of [
    ['an unclosed group', '(', /Unmatched \(/u],
    ['a group that is not there', '(a)\\2', /Invalid back reference/u],
    ['a pattern too large', 'a{100000}{100}', /too big/u],
  ] as const) {
    test(`${name} says what is wrong with ${what}, once`, async (t) => {
      await using root = await temporaryDirectory();
      for (let i = 0; i < 50; i += 1) await writeFile(join(root.path, `f${i}`), 'a\nb\n');
      const found = await search(path, root.path, pattern);
      t.deepEqual([found.code, found.isPatternRefused, found.matches], [0, true, []]);
      t.regex(found.problem ?? '', message);
      t.is(found.filesScanned, 0);
    });
  }

  test(`${name} searches with grep what rg refuses`, async (t) => {
    await using root = await temporaryDirectory();
    await writeFile(join(root.path, 'file'), 'ABab\nabcd\n');
    const options = { gnu: '(ab)\\1', ignoresCase: true };
    const { matches, reason } = await search(path, root.path, 'a{100000}{100}', options);
    t.deepEqual([matches.map(({ text }) => text), reason], [['ABab'], 'completed']);
  });

  test(`${name} finds with grep what grep finds, in any tree`, async (t) => {
    const property = fc.asyncProperty(randomTree, fc.integer({ min: 1, max: 5 }), compare);
    async function compare(tree: TreeEntry[], workers: number): Promise<void> {
      await using root = await temporaryDirectory();
      await makeTree(root.path, tree);
      const pattern = '(e|y)(d|$)|needle|^$';
      const expected = await grepMatches(root.path, pattern);
      const found = await search(path, root.path, '', { workers, gnu: pattern });
      t.deepEqual([found.code, found.reason, found.problem], [0, 'completed', undefined]);
      t.deepEqual(sortedLines(found.matches), sortedLines(expected));
    }
    await fc.assert(property, { numRuns: isFull ? 200 : 20 });
  });

  test(`${name} leaves binary files out when grep searches, and stops at its deadline`, async (t) => {
    await using root = await temporaryDirectory();
    await writeFile(join(root.path, 'late'), `${lines(100_000, 'needle')}\0\n`);
    await writeFile(join(root.path, 'text'), 'needle\n');
    const found = await search(path, root.path, '', { gnu: '(n)eedle' });
    t.deepEqual(sortedLines(found.matches), [JSON.stringify(['text', 1, 'needle'])]);
    t.deepEqual([found.reason, found.filesScanned], ['completed', 2]);
    await writeFile(join(root.path, 'slow'), `${'ab'.repeat(3000)}x\n`);
    const gnu = String.raw`(.*)(.*)\1\2\1x`;
    const slow = await search(path, root.path, '', { gnu, leftMs: 500 });
    t.is(slow.reason, 'deadline');
  });

  test(`${name} is linear where others backtrack`, async (t) => {
    await using root = await temporaryDirectory();
    await writeFile(join(root.path, 'file'), `${'a'.repeat(MiB)}b\n`);
    const found = await search(path, root.path, '(a+)+$');
    t.deepEqual([found.reason, found.matches], ['completed', []]);
  });

  test(`${name} stops at exactly as many results as are wanted`, async (t) => {
    await using root = await temporaryDirectory();
    for (let i = 0; i < 30; i += 1) await writeFile(join(root.path, `f${i}`), lines(10, 'needle'));
    for (const maxResults of [1, 10, 299, 300]) {
      const { matches, reason } = await search(path, root.path, 'needle', {
        maxResults,
        workers: 3,
      });
      t.deepEqual([matches.length, reason], [maxResults, 'max_results']);
    }
    const { matches, reason } = await search(path, root.path, 'needle', { maxResults: 301 });
    t.deepEqual([matches.length, reason], [300, 'completed']);
  });

  test(`${name} stops at its deadline with what it has and leaves no process`, async (t) => {
    await using root = await temporaryDirectory();
    await writeFile(join(root.path, 'file'), 'needle\n');
    const mark = `needle|BERTH-${process.pid}-${name.length}`;
    await promisify(execFile)('mkfifo', [join(root.path, 'pipe')]);
    const none = await search(path, root.path, mark, { leftMs: 0 });
    t.deepEqual([none.reason, none.matches], ['deadline', []]);
    // A loader that sleeps stands for a search that takes long.
    const tools = join(root.path, 'tools');
    await mkdir(tools);
    const script = `#!/bin/bash\n# ${mark}\ncase "$*" in */dev/null) ;; *) exec -a '${mark}' sleep 1000 ;; esac\n`;
    await writeFile(join(tools, 'ld.so'), script);
    await chmod(join(tools, 'ld.so'), 0o755);
    const slow = await search(path, root.path, mark, { leftMs: 300, tools });
    t.deepEqual([slow.reason, slow.filesScanned], ['deadline', 0]);
    t.deepEqual(await processesMarked(mark), []);
  });

  test(`${name} loses only the file that kills its worker`, async (t) => {
    await using root = await temporaryDirectory();
    await using other = await temporaryDirectory();
    for (let i = 0; i < 40; i += 1) await writeFile(join(root.path, `f${i}`), `needle ${i}\n`);
    await writeFile(join(root.path, 'killer'), 'needle\n');
    const real = ['ld.so', '--library-path', 'lib', 'rg'].map((part) =>
      part.startsWith('-') ? part : join(ownTools, part),
    );
    const script = `case "$*" in */killer*) kill -9 $$ ;; esac\nexec ${real.join(' ')} "\${@:4}"`;
    await writeFile(join(other.path, 'ld.so'), `#!/bin/bash\n${script}\n`, { mode: 0o755 });
    const found = await search(path, root.path, 'needle', { tools: other.path });
    t.deepEqual([found.reason, found.filesScanned], ['incomplete', 40]);
    t.is(new Set(found.matches.map(({ file }) => file)).size, 40);
    t.is(found.matches.length, 40);
    t.is(found.problem, 'killer: cannot be searched: the process was ended (Killed)');
  });

  test(`${name} takes whatever its workers print`, async (t) => {
    await using root = await temporaryDirectory();
    await using other = await temporaryDirectory();
    for (const file of ['a', 'ab', 'b']) await writeFile(join(root.path, file), '');
    const printed = join(other.path, 'printed');
    const script = `case "$*" in */dev/null) ;; *) cat '${printed}' ;; esac`;
    await writeFile(join(other.path, 'ld.so'), `#!/bin/bash\n${script}\n`, { mode: 0o755 });
    const piece = fc.oneof(
      fc.constantFrom('./a', './ab', './b', '\0', '1:', '99999999999999999999999:', '\n', 'text'),
      fc.constantFrom('./a\x001:x\n', './ab\x002:y\n', './b: binary file matches (found "', 'x\n'),
      fc.integer({ min: 1, max: 300_000 }).map((length) => 'x'.repeat(length)),
      fc.string({ maxLength: 5 }),
    );
    const property = fc.asyncProperty(fc.array(piece, { maxLength: 20 }), async (pieces) => {
      await writeFile(printed, pieces.join(''));
      const found = await search(path, root.path, 'x', { tools: other.path, workers: 1 });
      t.is(found.code, 0);
      t.true(['completed', 'incomplete'].includes(found.reason ?? ''), found.problem);
      t.true(found.matches.every(({ file }) => ['a', 'ab', 'b'].includes(file)));
    });
    await fc.assert(property, { numRuns: isFull ? 300 : 50 });
  });

  test(`${name} takes a directory that was removed for an empty one`, async (t) => {
    await using root = await temporaryDirectory();
    const gone = join(root.path, 'gone');
    await mkdir(gone);
    // The shell enters it and removes it before the search begins.
    const wrapper = join(root.path, 'wrapper');
    await writeFile(wrapper, `#!/bin/sh\nrmdir '${gone}'; exec '${path}' "$@"\n`);
    await chmod(wrapper, 0o755);
    const { reason, matches } = await search(wrapper, gone, 'needle');
    t.deepEqual([matches, reason], [[], 'completed']);
  });

  test(`${name} searches deep and broad trees`, async (t) => {
    await using root = await temporaryDirectory();
    const deep = join(root.path, ...Array.from({ length: 200 }, (_, i) => `d${i}`));
    await mkdir(deep, { recursive: true });
    await writeFile(join(deep, 'bottom'), 'needle\n');
    const broad = join(root.path, 'broad');
    await mkdir(broad);
    for (let i = 0; i < 3000; i += 1)
      await writeFile(join(broad, `f${i}`), i % 100 === 0 ? 'needle' : '');
    const { matches, filesScanned, reason } = await search(path, root.path, 'needle');
    t.deepEqual([matches.length, filesScanned, reason], [31, 3001, 'completed']);
    t.true(matches.some(({ file }) => file.endsWith('d199/bottom')));
  });

  test(`${name} reports a path that is too long to be opened, and goes on`, async (t) => {
    await using root = await temporaryDirectory();
    await writeFile(join(root.path, 'file'), 'needle\n');
    // Made from the inside out: no path to it from the root can be opened.
    let inner = join(root.path, 'building');
    await mkdir(inner);
    await writeFile(join(inner, 'lost'), 'needle\n');
    for (let depth = 0; depth < 30; depth += 1) {
      const outer = join(root.path, `outer${depth}`);
      await mkdir(outer);
      await rename(inner, join(outer, `${depth}`.padEnd(200, 'd')));
      inner = outer;
    }
    const { matches, reason, problem } = await search(path, root.path, 'needle');
    t.deepEqual([matches.map(({ file }) => file), reason], [['file'], 'incomplete']);
    t.regex(problem ?? '', /too long to be opened/u);
    await promisify(execFile)('rm', ['-rf', inner]);
  });

  test(`${name} follows no link and opens no device`, async (t) => {
    await using root = await temporaryDirectory();
    await using other = await temporaryDirectory();
    await writeFile(join(other.path, 'secret'), 'needle\n');
    await symlink(other.path, join(root.path, 'directory'));
    await symlink(join(other.path, 'secret'), join(root.path, 'file'));
    await symlink('.', join(root.path, 'loop'));
    const { matches, filesScanned, reason } = await search(path, root.path, 'needle');
    t.deepEqual([matches, filesScanned, reason], [[], 0, 'completed']);
  });

  test(`${name} refuses what is not a search`, async (t) => {
    for (const args of [[], ['/', '2', '1', '1', '1', 'x'], ['/', '1', '0', '1', '1', 'x']]) {
      const failed = await t.throwsAsync(promisify(execFile)(path, args));
      t.is(Reflect.get(failed ?? {}, 'code'), 2);
    }
  });

  test(`${name} survives files that shrink and vanish while it searches`, async (t) => {
    await using root = await temporaryDirectory();
    const files = Array.from({ length: 200 }, (_, i) => join(root.path, `f${i}`));
    for (const file of files) await writeFile(file, lines(2000, 'some hay here'));
    const found = search(path, root.path, 'needle');
    for (const file of files) await truncate(file, 0);
    const { code, reason, matches } = await found;
    t.deepEqual([code, reason, matches], [0, 'completed', []]);
  });
}
