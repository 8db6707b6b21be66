/* Documents stay short enough to be read, and name files and pictures that are there. */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';

const root = join(import.meta.dirname, '../..');
const WORDS_MAX = { 'README.md': 900, all: 90_000 } as const;

const tracked = async (pattern: string): Promise<string[]> => {
  const list = await promisify(execFile)('git', ['ls-files', '-z', pattern], { cwd: root });
  return list.stdout.split('\0').filter((name) => name !== '');
};

const wordsOf = async (file: string): Promise<number> =>
  (await readFile(join(root, file), 'utf8')).split(/\s+/u).filter((word) => word !== '').length;

test('the documents have as many words as can be read', async (t) => {
  const files = await tracked('*.md');
  t.true(files.length > 50);
  const words = await Promise.all(files.map(wordsOf));
  const all = words.reduce((sum, count) => sum + count, 0);
  t.true(all <= WORDS_MAX.all, `${all} words`);
  const readme = await wordsOf('README.md');
  t.true(readme <= WORDS_MAX['README.md'], `${readme} words`);
});

/** Files in backquotes: whole paths, or the end of one. */
const namedFiles = (text: string): string[] =>
  [...text.matchAll(/`([\w./-]+\.(?:tsx?|c|h|sql|mk|sh))`/gu)].map(([, name = '']) => name);

test('each file of the sources that a page names is there', async (t) => {
  const files = await tracked('*');
  const missing: string[] = [];
  for (const page of await tracked('*.md')) {
    const names = namedFiles(await readFile(join(root, page), 'utf8'));
    const unknown = names.filter(
      (name) => !files.some((file) => file === name || file.endsWith(`/${name}`)),
    );
    missing.push(...unknown.map((name) => `${page}: ${name}`));
  }
  t.deepEqual(missing, ['README.md: first.ts']); // The reader's own file.
});

test('each picture is shown by a page', async (t) => {
  const pages = await Promise.all(
    (await tracked('*.md')).map((file) => readFile(join(root, file), 'utf8')),
  );
  const pictures = await tracked('*.png');
  t.true(pictures.length >= 2);
  for (const picture of pictures) {
    const name = picture.slice(picture.indexOf('console/'));
    t.true(
      pages.some((page) => page.includes(`${name})`)),
      picture,
    );
  }
});
