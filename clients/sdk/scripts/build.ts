/** Builds the package into dist/: one bundle without dependencies, and its declarations. */
import { execFile } from 'node:child_process';
import { copyFile, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { build } from 'esbuild';

const root = join(import.meta.dirname, '..');
const dist = join(root, 'dist');
const compiler = join(root, '../../node_modules/.bin/tsc');

async function writeDeclarations(): Promise<void> {
  const emit = ['--noEmit', 'false', '--declaration', '--emitDeclarationOnly'];
  await promisify(execFile)(compiler, ['-p', root, ...emit, '--outDir', dist]);
}

/** The bundle contains it, so its licence comes along. */
async function copyLicence(): Promise<void> {
  const entry = createRequire(import.meta.url).resolve('openapi-fetch');
  await copyFile(join(dirname(dirname(entry)), 'LICENSE'), join(dist, 'LICENSE.openapi-fetch'));
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
await copyLicence();
