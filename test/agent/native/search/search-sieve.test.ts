/*
 * Files that the search program leaves out by a text that every match has: never one in which the
 * engine would find something.
 */
import { appendFile, chmod, mkdir, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { readPattern, type SearchPattern } from '../../../../agent/commands/pattern.ts';
import { KiB, MiB } from '../../../../shared/units.ts';
import * as fc from '../../../helpers/fast-check.ts';
import { isFull } from '../../../helpers/full.ts';
import { nastyFiles, nastyPattern } from '../../../helpers/nasty-files.ts';
import { buildsOf } from '../../../helpers/program-builds.ts';
import { search, type SearchOptions } from '../../../helpers/search-program.ts';
import {
  grepMatches,
  makeTree,
  randomTree,
  rgMatches,
  sortedLines,
} from '../../../helpers/searches.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

const builds = await buildsOf('search');
const PATTERNS_EACH = 6;

async function writeFiles(root: string, files: readonly Buffer[]): Promise<void> {
  for (const [index, contents] of files.entries()) {
    const directory = join(root, `d${index % 3}`);
    await mkdir(directory, { recursive: true });
    await writeFile(join(directory, `f${index}`), contents);
  }
}

/** The first lines of one that the other lacks, cut. */
function lacking(one: readonly string[], other: readonly string[]): string[] {
  const known = new Set(other);
  const lines = one.filter((line) => !known.has(line));
  return lines.slice(0, 5).map((line) => line.slice(0, 120));
}

/** Searches as the agent does, and compares with the engine itself. Returns how much was shown. */
async function compare(
  t: ExecutionContext,
  path: string,
  root: string,
  pattern: SearchPattern,
  workers: number,
): Promise<'refused' | 'all' | 'sifted' | 'text'> {
  const { rg = '', gnu, ignoresCase, required, isText, needsTrial } = pattern;
  const options = { workers, gnu, ignoresCase, needsTrial, maxResults: 100_000 };
  const found = await search(path, root, rg, { ...options, required, isText });
  const shown = JSON.stringify(pattern);
  if (found.isPatternRefused) {
    const unsifted = await search(path, root, rg, options);
    t.true(unsifted.isPatternRefused, shown);
    return 'refused';
  }
  t.deepEqual([found.code, found.reason, found.problem], [0, 'completed', undefined], shown);
  const expected =
    rg === '' ? await grepMatches(root, gnu, ignoresCase) : await rgMatches(root, rg);
  const [own, engines] = [sortedLines(found.matches), sortedLines(expected)];
  t.deepEqual([lacking(own, engines), lacking(engines, own)], [[], []], shown);
  t.is(own.length, engines.length, shown);
  if (isText) return 'text';
  return required === '' ? 'all' : 'sifted';
}

for (const { name, path } of builds) {
  test(`${name} finds the same with any pattern, in any files`, async (t) => {
    const counts = { refused: 0, all: 0, sifted: 0, text: 0 };
    const patterns = fc.array(nastyPattern, {
      minLength: PATTERNS_EACH,
      maxLength: PATTERNS_EACH,
    });
    const property = fc.asyncProperty(
      nastyFiles,
      patterns,
      fc.integer({ min: 1, max: 3 }),
      async (files, texts, workers) => {
        await using root = await temporaryDirectory();
        await writeFiles(root.path, files);
        for (const text of texts) {
          const pattern = readPattern(text);
          counts[await compare(t, path, root.path, pattern, workers)] += 1;
        }
      },
    );
    await fc.assert(property, { numRuns: isFull ? 150 : 15 });
    const shown = JSON.stringify(counts);
    t.true(counts.sifted > 8 && counts.all > 8 && counts.text > 8, shown);
  });

  test(`${name} finds the same when it leaves out files without a text of each match`, async (t) => {
    const property = fc.asyncProperty(
      randomTree,
      fc.constantFrom(
        ['needle', 'needle'],
        ['n.*dle', 'dle'],
        ['needleneedle', 'needleneedle'],
        ['^a ne+dle', 'a ne'],
        ['é*hay$', 'hay'],
      ),
      fc.integer({ min: 1, max: 5 }),
      fc.boolean(),
      async (tree, [pattern = '', required = ''], workers, needsTrial) => {
        const isText = pattern === required;
        await using root = await temporaryDirectory();
        await makeTree(root.path, tree);
        const expected = await rgMatches(root.path, pattern, []);
        const options = { workers, required, isText, needsTrial };
        const found = await search(path, root.path, pattern, options);
        const all = await search(path, root.path, pattern, { workers });
        t.deepEqual([found.code, found.reason, found.problem], [0, 'completed', undefined]);
        t.deepEqual(sortedLines(found.matches), sortedLines(expected));
        t.is(found.filesScanned, all.filesScanned);
      },
    );
    await fc.assert(property, { numRuns: isFull ? 100 : 15 });
  });

  for (const [where, places] of [
    ['where comparisons end', Array.from({ length: 70 }, (_, place) => place)],
    ['where the first reading ends', Array.from({ length: 16 }, (_, at) => 64 * KiB - 14 + at)],
    // The second reading repeats ten bytes.
    ['where the second reading ends', Array.from({ length: 30 }, (_, at) => 128 * KiB - 28 + at)],
    ['far behind', [700 * KiB]],
  ] as const) {
    test(`${name} finds a text ${where}`, async (t) => {
      await using root = await temporaryDirectory();
      const required = 'a needle é';
      const names = places.map((place) => `at-${place}`);
      for (const place of places) {
        await writeFile(join(root.path, `at-${place}`), `${'n'.repeat(place)}${required}`);
      }
      await writeFile(join(root.path, 'nowhere'), 'a needle \u{301}'.repeat(50_000));
      const options = { required, needsTrial: false };
      const { matches, reason, filesScanned } = await search(path, root.path, required, options);
      t.deepEqual([reason, filesScanned], ['completed', places.length + 1]);
      t.deepEqual(matches.map(({ file }) => file).toSorted(), names.toSorted());
    });
  }

  test(`${name} sifts thousands of files, whether few or all have the text`, async (t) => {
    await using root = await temporaryDirectory();
    const count = 3000;
    for (let index = 0; index < count; index += 1) {
      const text = index % 500 === 7 ? 'common\nrare\n' : 'common\n';
      await writeFile(join(root.path, `${index}`), text);
    }
    for (const [required, expected] of [
      ['rare', count / 500],
      ['common', count],
      ['absent', 0],
    ] as const) {
      for (const isText of [false, true]) {
        const options = { required, isText, needsTrial: false, maxResults: 10_000 };
        const { matches, filesScanned } = await search(path, root.path, required, options);
        t.deepEqual([matches.length, filesScanned], [expected, count], required);
      }
    }
  });

  test(`${name} finds what lies beyond the part of a large file that is sifted`, async (t) => {
    await using root = await temporaryDirectory();
    const filler = 'hay\n'.repeat(MiB / 2);
    for (const place of [MiB - 20, MiB - 3, MiB, MiB + 1, 2 * MiB]) {
      await writeFile(join(root.path, `${place}`), `${filler.slice(0, place)}\nneedle\n`);
    }
    const { matches, reason } = await search(path, root.path, 'needle', { required: 'needle' });
    t.deepEqual([reason, matches.length], ['completed', 5]);
  });

  const whole = { required: 'needle', isText: true, needsTrial: false };

  test(`${name} needs an engine for a text only where files are not plain`, async (t) => {
    await using root = await temporaryDirectory();
    await using nothing = await temporaryDirectory();
    const lines = ['needle', 'hay', '', 'two needles: needle', 'x\r', 'needle\r', 'last needle'];
    await writeFile(join(root.path, 'first'), `${lines.join('\n')}\n`);
    await writeFile(join(root.path, 'second'), lines.join('\n'));
    await writeFile(join(root.path, 'binary-without-it'), 'hay\0');
    const plain = await search(path, root.path, 'needle', { ...whole, tools: nothing.path });
    const expected = await rgMatches(root.path, 'needle');
    t.deepEqual([plain.reason, plain.problem, plain.filesScanned], ['completed', undefined, 3]);
    t.deepEqual(sortedLines(plain.matches), sortedLines(expected));
    for (const [kind, contents] of [
      ['binary', 'needle\n\0'],
      ['with a mark', '\u{feff}needle\n'],
      ['too long for one reading', `needle\n${'x'.repeat(64 * KiB)}`],
    ] as const) {
      const file = join(root.path, kind);
      await writeFile(file, contents);
      const found = await search(path, root.path, 'needle', { ...whole, tools: nothing.path });
      t.is(found.reason, 'incomplete', kind);
      // An emulator starts a process before it says that the program is not there.
      t.regex(found.problem ?? '', /^rg (?:cannot be started|failed)/u);
      await rm(file);
    }
  });

  test(`${name} tells as many matches of a text as are wanted`, async (t) => {
    await using root = await temporaryDirectory();
    const count = 30;
    for (let index = 0; index < count; index += 1) {
      await writeFile(join(root.path, `f${index}`), 'needle\n'.repeat(10));
    }
    for (const maxResults of [1, 10, 299, 300, 301]) {
      const options = { ...whole, maxResults, workers: 3 };
      const { matches, reason } = await search(path, root.path, 'needle', options);
      const isAll = maxResults > 10 * count;
      const told = isAll ? [300, 'completed'] : [maxResults, 'max_results'];
      t.deepEqual([matches.length, reason], told);
    }
  });

  test(`${name} finds more lines with a text than it holds`, async (t) => {
    await using root = await temporaryDirectory();
    const [lines, files] = [6000, 2];
    // Each match is told with the path of its file.
    const directory = join(root.path, 'd'.repeat(200), 'd'.repeat(200));
    await mkdir(directory, { recursive: true });
    for (let index = 0; index < files; index += 1) {
      await writeFile(join(directory, `f${index}`), 'needle\n'.repeat(lines));
    }
    const options = { ...whole, maxResults: 2 * lines * files };
    const { matches, reason } = await search(path, root.path, 'needle', options);
    t.is(reason, 'completed');
    t.is(new Set(matches.map(({ file, line }) => `${file}:${line}`)).size, lines * files);
    t.is(matches.length, lines * files);
  });

  test(`${name} finds the text in files that are replaced and grow meanwhile`, async (t) => {
    await using root = await temporaryDirectory();
    await using beside = await temporaryDirectory();
    const files = Array.from({ length: 400 }, (_, index) => join(root.path, `f${index}`));
    for (const file of files) await writeFile(file, `${'hay\n'.repeat(2000)}needle\n`);
    const found = search(path, root.path, 'needle', whole);
    const other = join(beside.path, 'other');
    for (let round = 0; round < 1000; round += 1) {
      const file = files[(round * 7) % files.length] ?? '';
      await writeFile(other, `needle\n${'hay\n'.repeat(round)}`);
      await rename(other, file);
      await appendFile(file, 'hay\n'.repeat(1000));
    }
    const { reason, matches } = await found;
    t.is(reason, 'completed');
    t.is(new Set(matches.map(({ file }) => file)).size, files.length);
  });

  test(`${name} says which files it may not read`, async (t) => {
    await using root = await temporaryDirectory();
    await chmod(root.path, 0o755);
    for (const file of ['a', 'b', 'secret']) await writeFile(join(root.path, file), 'needle\n');
    await chmod(join(root.path, 'secret'), 0);
    const options: SearchOptions = { uid: 65534, required: 'needle', needsTrial: false };
    const { matches, reason, problem } = await search(path, root.path, 'needle', options);
    t.deepEqual(matches.map(({ file }) => file).toSorted(), ['a', 'b']);
    t.is(reason, 'incomplete');
    t.regex(problem ?? '', /secret: Permission denied/u);
  });
}
