/*
 * A decision that is cited is there, and the index lists each. The number of one that is gone is
 * never given again, so a citation that was left behind would lead nowhere.
 */
import { execFile } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';

const root = join(import.meta.dirname, '../..');
const folder = 'docs/decisions';
const INDEX = 'README.md';
/** `decision 0003`, also over two lines of a comment, and the paths and links of its file. */
const CITATION = /(?:\bdecisions?[\s*/[]+|\]\()(?<file>\d{4}(?:-[\w-]+\.md)?)/giu;

const decisionFiles = async (): Promise<string[]> =>
  (await readdir(join(root, folder))).filter((name) => name !== INDEX);

/** Numbers, or names of files where a citation has one. */
const citationsIn = (text: string): string[] =>
  [...text.matchAll(CITATION)].map(({ groups }) => groups?.['file'] ?? '');

test('citations are found in whatever form', (t) => {
  t.deepEqual(citationsIn('see decision 0345, docs/decisions/0346).'), ['0345', '0346']);
  t.deepEqual(citationsIn('decisions [0345](../decisions/0346-a.md)'), ['0345', '0346-a.md']);
  t.deepEqual(citationsIn(' * as the decision\n * 0345 says'), ['0345']);
  t.deepEqual(citationsIn('[0345](0346-a.md), 0347'), ['0346-a.md']);
});

test('each decision that is cited is there', async (t) => {
  const files = await decisionFiles();
  const known = new Set([...files, ...files.map((name) => name.slice(0, 4))]);
  const list = await promisify(execFile)('git', ['grep', '-lIi', 'decision'], { cwd: root });
  const missing: string[] = [];
  for (const file of list.stdout.trim().split('\n')) {
    if (join(root, file) === import.meta.filename) continue;
    const cited = citationsIn(await readFile(join(root, file), 'utf8'));
    missing.push(...cited.filter((name) => !known.has(name)).map((name) => `${file}: ${name}`));
  }
  t.deepEqual(missing, []);
});

test('the index has each decision once, with its title and status', async (t) => {
  const index = await readFile(join(root, folder, INDEX), 'utf8');
  const rows = [...index.matchAll(/^\| \[\d{4}\].*$/gmu)].map(([row]) => row);
  const files = await decisionFiles();
  t.is(rows.length, files.length);
  t.is(new Set(files.map((name) => name.slice(0, 4))).size, files.length);
  for (const name of files) {
    const text = await readFile(join(root, folder, name), 'utf8');
    const [, number = '', title = '', status = ''] =
      /^# (\d{4}) (.+)\n\nStatus: (\w+) /u.exec(text) ?? [];
    t.true(name.startsWith(`${number}-`), name);
    const start = `| [${number}](${name}) | ${title} | ${status} | `;
    t.is(rows.filter((row) => row.startsWith(start)).length, 1, name);
  }
});
