/* Patterns of grep -E, translated: compared with GNU grep itself on text of all kinds of lines. */
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { readPattern } from '../../../agent/commands/pattern.ts';
import { AppError } from '../../../shared/errors.ts';
import { MiB } from '../../../shared/units.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { isFull } from '../../helpers/full.ts';

interface Ended {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs a program in the locale in which searches run. */
const run = (program: string, args: readonly string[]): Promise<Ended> =>
  new Promise((resolve) => {
    const options = { maxBuffer: 64 * MiB, env: { PATH: process.env['PATH'], LC_ALL: 'C.UTF-8' } };
    execFile(program, args, options, (error, stdout, stderr) =>
      resolve({ code: Number(error?.code ?? 0), stdout, stderr }),
    );
  });

const grep = (pattern: string, file: string): Promise<Ended> =>
  run('grep', ['-aE', '-e', pattern, file]);
const rg = (pattern: string, file: string): Promise<Ended> =>
  run('rg', ['--no-config', '--no-mmap', '-aNI', '-e', pattern, file]);

const isSame = (one: Ended, other: Ended): boolean =>
  one.code === other.code && one.stdout === other.stdout;

const characters = Array.from('abcéüABÉ 12{}^$.*+?|()[]/\\-_\t\r,&~#%\u{301}\u{a0}');
const atoms = [
  ...['a', 'b', 'é', '.', ' ', '1', '-', ',', '}', ']', '&', '~', '#', '%', '()', '(a)', '(|b)'],
  ...['[ab]', '[^ab]', '[a-c]', '[]a]', '[^]a]', '[a-]', '[-a]', '[+--]', '[&&]', '[~-]', '[a^]'],
  ...[
    '[[:alpha:]]',
    '[^[:digit:]]',
    '[[:upper:]b]',
    '[[:punct:]]',
    '[[:space:]]',
    String.raw`[\w]`,
  ],
  ...['w', 'W', 's', 'S', '.', '*', '{', '}', '(', ')', '|', '^', '$', '\\'].map((c) => `\\${c}`),
];
const marks = ['|', '\n', '(', ')', '[', 'b{', '[a', '[z-a]', '^', '$', 'b{2', 'a{2,1}', 'b{}'];
const boundaries = ['<', '>', 'b', 'B'].map((letter) => `\\${letter}`);
const repetitions = ['', '', '', '*', '+', '?', '{1}', '{2}', '{,2}', '{1,}', '{0,2}', '**', '+?'];

/** Patterns of all kinds, valid and not; what GNU grep warns of is left out. */
const pattern = fc
  .array(
    fc.oneof(
      {
        weight: 4,
        arbitrary: fc
          .tuple(fc.constantFrom(...atoms), fc.constantFrom(...repetitions))
          .map((parts) => parts.join('')),
      },
      fc.constantFrom(...marks),
      fc.constantFrom(...boundaries),
      fc.constant(String.raw`(a|.)\1`),
    ),
    { minLength: 1, maxLength: 6 },
  )
  .map((parts) => parts.join(''));

test('a pattern means to both engines what it means to grep -E', async (t) => {
  await using directory = await temporaryDirectory();
  const file = join(directory.path, 'file');
  const line = fc.array(fc.constantFrom(...characters), { maxLength: 7 });
  const lines = fc.sample(line, { numRuns: 500, seed: 17 }).map((each) => each.join(''));
  await writeFile(file, `${lines.join('\n')}\n`);
  let translated = 0;
  const property = fc.asyncProperty(pattern, async (text) => {
    const read = readPattern(text);
    const [expected, gnu] = await Promise.all([grep(text, file), grep(read.gnu, file)]);
    t.true(isSame(gnu, expected), `grep ${JSON.stringify([text, read.gnu])}: ${gnu.stderr}`);
    const lacking = expected.stdout.split('\n').slice(0, -1);
    t.true(
      lacking.every((found) => found.includes(read.required)),
      JSON.stringify([text, read.required]),
    );
    t.true(read.needsTrial || expected.code < 2, text);
    if (read.rg === undefined) return;
    translated += 1;
    const found = await rg(read.rg, file);
    t.true(isSame(found, expected), `rg ${JSON.stringify([text, read.rg])}: ${found.stderr}`);
  });
  await fc.assert(property, { numRuns: isFull ? 3000 : 150 });
  t.true(translated > 30, String(translated));
});

test("every character belongs to the classes that it has in GNU grep's locale", async (t) => {
  await using directory = await temporaryDirectory();
  const file = join(directory.path, 'file');
  const codes = Array.from({ length: 0x11_0000 }, (_, code) => code).filter(
    (code) => code > 0 && code !== 10 && (code < 0xd8_00 || code > 0xdf_ff),
  );
  await writeFile(file, codes.map((code) => `${code} ${String.fromCodePoint(code)}\n`).join(''));
  const names = ['alnum', 'alpha', 'blank', 'cntrl', 'digit', 'graph', 'lower', 'print', 'punct'];
  const classes = [...names, 'space', 'upper', 'xdigit'].map((name) => `[[:${name}:]]`);
  for (const set of [...classes, String.raw`\w`, String.raw`\W`, String.raw`\s`, String.raw`\S`]) {
    const text = `^[0-9]+ ${set}$`;
    const [expected, found] = await Promise.all([
      grep(text, file),
      rg(readPattern(text).rg ?? '', file),
    ]);
    t.true(expected.stdout !== '' && found.stdout === expected.stdout, set);
  }
});

for (const [text, required] of [
  ['needle', 'needle'],
  ['(a|b)needle[0-9]+', 'needle'],
  ['need+le', 'need'],
  ['need*ler', 'nee'],
  ['xneed+*ler', 'xnee'],
  ['^ab.cdef$', 'cdef'],
  [String.raw`a\.b\*c`, 'a.b*c'],
  ['ab', ''],
  ['éa', 'éa'],
  ['needle|hay', ''],
  ['needle\nhay', ''],
  ['(?i)needle', ''],
  ['(needle)', ''],
  [String.raw`needle(a)\1`, ''],
] as const) {
  test(`each match of ${JSON.stringify(text)} has ${JSON.stringify(required)}`, (t) => {
    t.is(readPattern(text).required, required);
  });
}

for (const [text, isText] of [
  ['needle', true],
  [String.raw`a\.b\*c`, true],
  ['x'.repeat(64), true],
  ['x'.repeat(65), false], // Longer texts are cut.
  ['\u{1f600}'.repeat(64), true],
  ['ab', false],
  ['\u{d83d}needle', false],
  ['needle ', true],
  ['^needle', false],
  ['needle$', false],
  ['needle.', false],
  ['needles?', false],
  ['needle{1}', false],
  ['(needle)', false],
  ['needle|needle', false],
  ['needle\n', false],
  ['(?i)needle', false],
  [String.raw`needle\b`, false],
] as const) {
  test(`${JSON.stringify(text)} is ${isText ? '' : 'not '}a plain text`, (t) => {
    t.is(readPattern(text).isText, isText);
  });
}

for (const [text, rgText] of [
  ['a{', String.raw`(?:a\{)`],
  [String.raw`\d+\t`, '(?:[0-9]{1,}\t)'],
  ['(?i)ab', '(?i)(?:ab)'],
  ['*a', '(?:a)'],
  ['^*a+?', '(?:(?:a{1,}){0,1})'],
] as const) {
  test(`ripgrep's engine takes ${text}`, (t) => t.is(readPattern(text).rg, rgText));
}

for (const text of [
  ...['\\<a', String.raw`(a)\1`, '[[=a=]]', '(', 'a)', '[:alpha:]', 'a{40000}', 'a{2,1}', '['],
  ...[`${'('.repeat(100)}${')'.repeat(100)}`, 'a******', String.raw`\s`.repeat(5000), 'a\\'],
]) {
  test(`GNU grep's engine alone takes ${text.slice(0, 20)}`, (t) => {
    t.is(readPattern(text).rg, undefined);
    t.is(typeof readPattern(text).gnu, 'string');
  });
}

for (const [text, message] of [
  ['(?=a)', /\(\?/u],
  ['a(?:b)', /\(\?/u],
  [String.raw`\p{L}`, /no meaning/u],
  [String.raw`\x41`, /no meaning/u],
  [String.raw`\d`.repeat(30_000), /too long/u],
] as const) {
  test(`a pattern that would search for something else is refused: ${text.slice(0, 10)}`, (t) => {
    const error = t.throws(() => readPattern(text), { instanceOf: AppError, message });
    t.is(error?.code, 'bad_request');
  });
}
