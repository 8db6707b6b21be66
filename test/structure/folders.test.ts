/*
 * Folders depend on each other one way: each can be read, tested and replaced together with what lies
 * below it. The linter keeps files free of cycles (`import/no-cycle`); this does the same for the
 * folders that they are in, where every directory is a folder of its own.
 */
import { readdir, readFile } from 'node:fs/promises';
import { dirname, join, normalize } from 'node:path';
import test from 'ava';
import { findCycle } from '../helpers/cycles.ts';

const root = join(import.meta.dirname, '../..');
const trees = ['agent', 'control', 'shared', 'scripts', 'bench'];
/** All that may lie in the agent's root: what puts its rooms together. */
const AGENT_ROOT = ['config.ts', 'host.ts', 'main.ts', 'metrics.ts'];

async function sourcesOf(tree: string): Promise<string[]> {
  const entries = await readdir(join(root, tree), { recursive: true });
  return entries.filter((name) => name.endsWith('.ts')).map((name) => join(tree, name));
}

const importsOf = (file: string, text: string): string[] =>
  [...text.matchAll(/(?:from|import)\s*\(?\s*'(\.[^']+)'/gu)].map(([, path = '']) =>
    normalize(join(dirname(file), path)),
  );

/** By folder, the other folders of `trees` that its files import from. */
async function folderGraph(): Promise<Map<string, Set<string>>> {
  const graph = new Map<string, Set<string>>();
  for (const file of (await Promise.all(trees.map(sourcesOf))).flat()) {
    const folder = dirname(file);
    const targets = graph.get(folder) ?? new Set<string>();
    for (const imported of importsOf(file, await readFile(join(root, file), 'utf8'))) {
      if (dirname(imported) !== folder) targets.add(dirname(imported));
    }
    graph.set(folder, targets);
  }
  return graph;
}

test('no folders import each other in a circle', async (t) => {
  const graph = await folderGraph();
  t.true(graph.size > 30);
  t.is(findCycle(graph)?.join(' → '), undefined);
});

test('the root of the agent only puts its rooms together', async (t) => {
  const names = (await readdir(join(root, 'agent'))).filter((name) => name.endsWith('.ts'));
  t.deepEqual(names.sort(), AGENT_ROOT);
});

test('shared/ imports neither tier', async (t) => {
  const graph = await folderGraph();
  const tiers = [...graph].filter(([folder]) => /^shared\b/u.test(folder));
  const upward = tiers.flatMap(([folder, targets]) =>
    [...targets].filter((to) => !/^shared\b/u.test(to)).map((to) => `${folder} → ${to}`),
  );
  t.deepEqual(upward, []);
});
