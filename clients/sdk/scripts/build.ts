/** Builds the package into dist/: one bundle without dependencies, and its declarations. */
import { execFile } from 'node:child_process';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { build } from 'esbuild';

const root = join(import.meta.dirname, '..');
const dist = join(root, 'dist');
const compiler = join(root, '../../node_modules/.bin/tsc');

async function writeDeclarations(): Promise<void> {
  const emit = ['--noEmit', 'false', '--declaration', '--emitDeclarationOnly'];
  await promisify(execFile)(compiler, ['-p', root, ...emit, '--outDir', dist]);
}

await rm(dist, { recursive: true, force: true });
await Promise.all([
  build({
    entryPoints: [join(root, 'src/index.ts')],
    outfile: join(dist, 'index.js'),
    bundle: true,
    format: 'esm',
    platform: 'neutral', // No built-in modules of Node: it runs in browsers as it is.
    target: 'es2024',
    sourcemap: true,
    logLevel: 'warning',
  }),
  writeDeclarations(),
]);
