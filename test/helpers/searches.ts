import { execFile } from 'node:child_process';
import { mkdir, symlink, writeFile } from 'node:fs/promises';
import * as fc from './fast-check.ts';
import { MiB } from '../../shared/units.ts';

/** An entry of a random tree; names are bytes. */
export interface TreeEntry {
  readonly path: readonly Buffer[];
  readonly kind: 'file' | 'directory' | 'link' | 'fifo';
  readonly contents: Buffer;
}

export interface FoundLine {
  readonly file: string;
  readonly line: number;
  readonly text: string;
}

const oddNames = [
  ...['-', '--help', '-e', ' ', 'a b', '.hidden', '.gitignore', '.ignore', '.rgignore'],
  ...['new\nline', 'x: binary file matches (found "\\0" byte around offset 1)', "it's", '*', 'ü'],
];
const name = fc.oneof(
  fc.constantFrom(...oddNames).map((text) => Buffer.from(text)),
  fc
    .uint8Array({ minLength: 1, maxLength: 5 })
    .map((bytes) => Buffer.from(bytes))
    .filter((bytes) => !/[\0/]|^\.\.?$/u.test(bytes.toString('latin1'))),
);
const oddLines = [
  'needle',
  'hay',
  'a needle\r',
  'NEEDLE',
  '',
  'ne\u{301}edle',
  'needle'.repeat(50),
  '*',
];
const line = fc.oneof(
  { weight: 8, arbitrary: fc.constantFrom(...oddLines).map((text) => Buffer.from(text)) },
  { weight: 1, arbitrary: fc.uint8Array({ maxLength: 8 }).map((bytes) => Buffer.from(bytes)) },
);
const newline = Buffer.from('\n');
const contents = fc
  .tuple(
    fc.constantFrom('', '', '', '\u{feff}', '\xff\xfe', '\0'),
    fc.array(line, { maxLength: 12 }),
    fc.boolean(),
  )
  .map(([start, lines, isEnded]) => {
    const parts = lines.flatMap((part, index) => (index === 0 ? [part] : [newline, part]));
    const head = Buffer.from(start, start === '\u{feff}' ? 'utf8' : 'latin1');
    return Buffer.concat([head, ...parts, ...(isEnded ? [newline] : [])]);
  });

export const randomTree: fc.Arbitrary<TreeEntry[]> = fc.array(
  fc.record({
    path: fc.array(name, { minLength: 1, maxLength: 4 }),
    kind: fc.constantFrom('file', 'file', 'file', 'file', 'directory', 'link', 'fifo'),
    contents,
  }),
  { maxLength: 25 },
);

const slash = Buffer.from('/');

const runProgram = (program: string, args: readonly string[], cwd: string): Promise<Buffer> =>
  new Promise((resolve) => {
    const options = { cwd, encoding: 'buffer', maxBuffer: 64 * MiB } as const;
    execFile(program, args, options, (_error, stdout) => resolve(stdout));
  });

async function makeEntry(path: Buffer, { kind, contents: bytes }: TreeEntry): Promise<void> {
  if (kind === 'directory') await mkdir(path, { recursive: true });
  else if (kind === 'link') await symlink(bytes.length % 2 === 0 ? '/etc' : '.', path);
  else if (kind === 'fifo') {
    // A shell passes the name on as it is: Node's own would have to be text.
    const octal = [...path].map((byte) => `\\${byte.toString(8).padStart(3, '0')}`).join('');
    await runProgram('bash', ['-c', `mkfifo -- $'${octal}'`], '/');
  } else await writeFile(path, bytes, { flag: 'wx' });
}

/** Writes the tree. Entries whose name is taken or lies below a file are left out. */
export async function makeTree(root: string, entries: readonly TreeEntry[]): Promise<void> {
  for (const entry of entries) {
    const path = Buffer.concat([Buffer.from(root), ...entry.path.flatMap((part) => [slash, part])]);
    try {
      await mkdir(path.subarray(0, path.lastIndexOf(slash)), { recursive: true });
      await makeEntry(path, entry);
    } catch {
      // Taken.
    }
  }
}

/** Matches of `rg -uu` in the tree, as text. */
export async function rgMatches(
  root: string,
  pattern: string,
  options: readonly string[] = [],
): Promise<FoundLine[]> {
  const shape = ['--no-heading', '--with-filename', '--null', '--line-number', '--color=never'];
  const args = ['--no-config', '-uu', '-j1', ...shape, ...options, '-e', pattern, './'];
  return foundLines(await runProgram('rg', args, root));
}

/** rg's note after the matches of a file in which it comes upon a NUL only later. */
const BINARY = /^\.\/([^\0]*?): WARNING: stopped searching binary file after match[^\n]*\n/u;

/** Matches as they are printed, but none of a binary file. */
function foundLines(output: Buffer): FoundLine[] {
  const hasBinary = output.includes(': WARNING: stopped searching');
  let found: FoundLine[] = [];
  for (let at = 0; at < output.length;) {
    // In Latin-1 there are as many characters as bytes, also where a name is no UTF-8.
    const binary = hasBinary ? BINARY.exec(output.toString('latin1', at, at + 8192)) : null;
    if (binary !== null) {
      const [note, named = ''] = binary;
      const path = Buffer.from(named, 'latin1').toString('utf8');
      found = found.filter(({ file }) => file !== path);
      at += note.length;
      continue;
    }
    const nul = output.indexOf(0, at);
    const colon = output.indexOf(':', nul);
    const end = output.indexOf('\n', colon);
    found.push({
      file: output.toString('utf8', at, nul).replace(/^\.\//u, ''),
      line: Number(output.toString('latin1', nul + 1, colon)),
      text: output.toString('utf8', colon + 1, end),
    });
    at = end + 1;
  }
  return found;
}

/**
 * Matches of GNU grep in the text files of the tree: those without a NUL, whatever other bytes they
 * have.
 */
export async function grepMatches(
  root: string,
  pattern: string,
  ignoresCase = false,
): Promise<FoundLine[]> {
  const find = `find . -type f -print0 | xargs -0rn1 sh -c 'tr -d "\\0" <"$0" | cmp -s - "$0" && printf "%s\\0" "$0"'`;
  const shape = ['-EanHZ', ignoresCase ? '-i' : '--no-ignore-case', '--color=never'];
  const options = [...shape, '-e', pattern, '--'];
  const grep = `LC_ALL=C.UTF-8 xargs -0r grep "$@"`;
  return foundLines(
    await runProgram('bash', ['-c', `${find} | ${grep}`, 'bash', ...options], root),
  );
}

export const sortedLines = (lines: readonly FoundLine[]): string[] =>
  lines.map(({ file, line: number, text }) => JSON.stringify([file, number, text])).sort();
