/*
 * Comments name their subject (CONTRIBUTING.md, Code): one that begins with "What", "Who",
 * "Whoever", "Whatever", "Of", "It", "One", "As" or "That" usually hides who does what, and is
 * understood only by its writer.
 */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';

const root = join(import.meta.dirname, '../..');
const trees = ['agent', 'bench', 'clients', 'control', 'examples', 'scripts', 'shared', 'test'];
const SOURCE = /\.(?:tsx?|js|c|h)$/u;
const FOREIGN = /(?:^|\/)(?:node_modules|generated|build|dist)\//u;
const NAMELESS =
  /^(?:\/\*\*?|\/\/)\s*(?:\*\s*)?(?:What|Who|Whoever|Whatever|Of|It|One|As|That)\b.*/u;
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

test('comments name their subject', async (t) => {
  const files = (await Promise.all(trees.map(sourcesOf))).flat();
  t.true(files.length > 1000);
  const nameless = await Promise.all(
    files.map(async (file) =>
      namelessIn(await readFile(join(root, file), 'utf8')).map((found) => `${file}:${found}`),
    ),
  );
  t.deepEqual(nameless.flat(), []);
});
