/*
 * The environment of control and agent may have the cluster's secrets. Settings are read from it
 * once; nothing else reads or passes it on.
 */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';

const root = join(import.meta.dirname, '../..');
const trees = ['agent', 'control', 'shared'];

const READS_ENVIRONMENT = /\bprocess\s*\.\s*env\b|\bprocess\s*\[|\benv\b[^;]*from 'node:process'/u;
const STARTS_PROGRAMS = /from 'node:(?:child_process|cluster)'/u;
const STARTS_THREADS = /from 'node:worker_threads'/u;
const TYPES_ONLY = /^import type .*$/gmu;
const COMMENTS = /\/\*[\s\S]*?\*\/|\/\/.*$/gmu;

async function filesWith(pattern: RegExp): Promise<string[]> {
  const found: string[] = [];
  for (const tree of trees) {
    for (const name of await readdir(join(root, tree), { recursive: true })) {
      if (!name.endsWith('.ts')) continue;
      const text = await readFile(join(root, tree, name), 'utf8');
      const code = text.replaceAll(COMMENTS, '').replaceAll(TYPES_ONLY, '');
      if (pattern.test(code)) found.push(`${tree}/${name}`);
    }
  }
  return found.toSorted();
}

test('the environment is read in one place, and in one for what is no setting', async (t) => {
  const reading = await filesWith(READS_ENVIRONMENT);
  t.deepEqual(reading, ['agent/system/environment.ts', 'shared/settings/start-service.ts']);
});

test('the agent starts programs in one place, which names their environment; control starts none', async (t) => {
  t.deepEqual(await filesWith(STARTS_PROGRAMS), ['agent/system/spawn.ts']);
  t.deepEqual(await filesWith(/\bnative\s*\.\s*spawn\b/u), ['agent/system/start-program.ts']);
});

test('threads get no copy of the environment', async (t) => {
  const makers = await filesWith(/new Worker\(/u);
  const threads = new Set(await filesWith(STARTS_THREADS));
  for (const file of makers.filter((name) => threads.has(name))) {
    const text = await readFile(join(root, file), 'utf8');
    t.regex(text, /new Worker\([^;]*\benv: \{\}/u, file);
  }
  t.true(threads.size > 2);
});
