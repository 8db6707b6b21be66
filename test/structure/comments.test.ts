/*
 * Comments name their subject (CONTRIBUTING.md, Code): one that begins with "What", "Who",
 * "Whoever", "Whatever", "Of", "It", "One", "As" or "That" usually hides who does what, and is
 * understood only by its writer.
 */
import assert from 'node:assert/strict';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';

const root = join(import.meta.dirname, '../..');
const trees = ['agent', 'bench', 'clients', 'control', 'examples', 'scripts', 'shared', 'test'];
const SOURCE = /\.(?:tsx?|js|c|h)$/u;
const FOREIGN = /(?:^|\/)(?:node_modules|generated|build|dist)\//u;
const NAMELESS =
  /^(?:\/\*\*?|\/\/)\s*(?:\*\s*)?(?:What|Who|Whoever|Whatever|Of|It|One|As|That)\b.*/u;
const COLUMNS = 100;
const STRING = /'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`(?:\\.|[^`\\])*`/gu;

/** The comment of a line, from its mark on, whether code precedes it or not. */
function commentOf(line: string): string {
  const code = line.replaceAll(STRING, (text) => '-'.repeat(text.length));
  return line.slice(/(?:^|\s)(?:\/\/|\/\*)/u.exec(code)?.index ?? line.length).trimStart();
}

/** First lines of comments that do not name their subject, as `line: text`. */
function namelessIn(text: string): string[] {
  const lines = text.split('\n');
  return lines.flatMap((line, index) => {
    // A block's text begins in its second line; a run of line comments has one beginning.
    const comment = commentOf(line);
    const isBare = /^\/\*\*?$/u.test(comment);
    const begins = isBare ? `${comment} ${lines[index + 1]?.trim() ?? ''}` : comment;
    const goesOn = /^\s*\/\//u.test(line) && /^\s*\/\//u.test(lines[index - 1] ?? '');
    return !goesOn && NAMELESS.test(begins) ? [`${index + 1}: ${begins}`] : [];
  });
}

/** Lines of comments beyond 100 columns, as `line: text`; the formatter breaks none. */
function longIn(text: string): string[] {
  return text.split('\n').flatMap((line, index) => {
    const [, words = ''] = /^\s*(?:\/\/|\/\*\*?|\*)\s+(.*)$/u.exec(line) ?? [];
    // Nothing breaks a URL, and an order to the linter must stay in its line.
    const isBreakable = /\s/u.test(words) && !words.startsWith('oxlint-');
    return line.length > COLUMNS && isBreakable ? [`${index + 1}: ${line.trim()}`] : [];
  });
}

async function sourcesOf(tree: string): Promise<string[]> {
  const entries = await readdir(join(root, tree), { recursive: true });
  return entries
    .map((name) => join(tree, name))
    .filter((name) => SOURCE.test(name) && !FOREIGN.test(name));
}

test('a comment without a subject is found, wherever its text begins', (t) => {
  t.deepEqual(
    namelessIn(
      [
        '/** What it does. */',
        '/**',
        ' * Of the disk.',
        ' */',
        '// Names the rest.',
        '// It goes on.',
        "const text = '// It is no comment';",
        '  // As before.',
        'const max = 1; // Of loff_t.',
        "const url = 'https://host'; // It is away.",
        '  int max; /* What it is. */',
        'const max = 1; // The largest loff_t.',
        "const text = ['a // Of', `b /* It`];",
      ].join('\n'),
    ).map((found) => found.split(':')[0]),
    ['1', '2', '8', '9', '10', '11'],
  );
});

test('a line of a comment is found that should have been broken', (t) => {
  const words = 'word '.repeat(20);
  t.deepEqual(
    longIn(
      [
        `// ${words}`,
        `  /** ${words}*/`,
        ` * ${words}`,
        `const text = '${words}';`,
        `// ${words.slice(0, -3)}`,
        `// https://host/${'word-'.repeat(20)}`,
        `// oxlint-disable-next-line rule -- ${words}`,
      ].join('\n'),
    ).map((found) => found.split(':')[0]),
    ['1', '2', '3'],
  );
});

/** Everything that a check finds in the sources. */
async function foundIn(check: (text: string) => string[]): Promise<string[]> {
  const files = (await Promise.all(trees.map(sourcesOf))).flat();
  assert.ok(files.length > 1000);
  const found = files.map(async (file) =>
    check(await readFile(join(root, file), 'utf8')).map((each) => `${file}:${each}`),
  );
  return (await Promise.all(found)).flat();
}

test('comments name their subject', async (t) => {
  t.deepEqual(await foundIn(namelessIn), []);
});

test('lines of comments have at most 100 columns', async (t) => {
  t.deepEqual(await foundIn(longIn), []);
});
