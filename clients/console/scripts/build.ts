/**
 * Builds the console into .local/console, which control serves: the page, and assets whose names
 * carry the hash of their content. Does nothing when what is there was built from the same sources.
 * `--is-current` only says so, by its exit code.
 */
import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { build, type Metafile } from 'esbuild';

const root = join(import.meta.dirname, '../../..');
const target = join(root, '.local/console');
const stamp = join(target, 'stamp');
/** Everything that the result depends on. */
const SOURCES = [
  'clients/console/src',
  'clients/console/scripts',
  'clients/sdk/src',
  'shared/activity-types.ts',
  'shared/key-scopes.ts',
  'shared/sandbox-lifecycle.ts',
  'package-lock.json',
];

async function filesBelow(path: string): Promise<string[]> {
  if (/\.\w+$/u.test(path)) return [path];
  const entries = await readdir(join(root, path), { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(root.length + 1))
    .sort();
}

async function stampOfSources(): Promise<string> {
  const hash = createHash('sha256');
  for (const file of (await Promise.all(SOURCES.map(filesBelow))).flat()) {
    hash.update(`${file}\0`).update(await readFile(join(root, file)));
  }
  return hash.digest('hex');
}

const page = (script: string, style: string): string => `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Berth</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/console/assets/${style}">
<script type="module" src="/console/assets/${script}"></script>
</head>
<body><div id="app"></div><noscript>The console needs JavaScript.</noscript></body>
</html>
`;

/** The script that the entry point became, and its style sheet. */
function entryOf({ outputs }: Metafile): [script: string, style: string] {
  const names = Object.keys(outputs);
  const script = names.find((name) => outputs[name]?.entryPoint?.endsWith('src/main.tsx')) ?? '';
  return [basename(script), basename(outputs[script]?.cssBundle ?? '')];
}

async function buildInto(directory: string): Promise<void> {
  const { metafile } = await build({
    entryPoints: [join(root, 'clients/console/src/main.tsx')],
    outdir: join(directory, 'assets'),
    entryNames: '[name]-[hash]',
    chunkNames: '[name]-[hash]',
    bundle: true,
    splitting: true, // The editor and the terminal are loaded when they are opened.
    format: 'esm',
    platform: 'browser',
    conditions: ['berth-source'],
    target: 'es2023',
    jsx: 'automatic',
    jsxImportSource: 'preact',
    minify: true,
    legalComments: 'linked',
    metafile: true,
    logLevel: 'warning',
  });
  await writeFile(join(directory, 'index.html'), page(...entryOf(metafile)));
}

const wanted = await stampOfSources();
const isCurrent = (await readFile(stamp, 'utf8').catch(() => '')) === wanted;
if (process.argv.includes('--is-current')) {
  process.exitCode = isCurrent ? 0 : 1;
} else if (!isCurrent) {
  const fresh = `${target}.${process.pid}`;
  await mkdir(fresh, { recursive: true, mode: 0o700 });
  await buildInto(fresh);
  await writeFile(join(fresh, 'stamp'), wanted);
  await rm(target, { recursive: true, force: true });
  await rename(fresh, target);
}
