/*
 * Folders depend on each other one way: each can be read, tested and replaced together with what
 * lies below it. Types count, and so does a folder together with all folders in it. The linter
 * keeps files free of cycles (`import/no-cycle`).
 */
import { readdir, readFile } from 'node:fs/promises';
import { dirname, join, normalize } from 'node:path';
import test from 'ava';
import { findCycle } from '../helpers/cycles.ts';

const root = join(import.meta.dirname, '../..');
const trees = ['agent', 'control', 'shared', 'scripts', 'bench'];
/** All that may lie in the agent's root: what puts its rooms together. */
const AGENT_ROOT = ['config.ts', 'host.ts', 'main.ts', 'metrics.ts', 'reclaim.ts'];
/** The agent's rooms of TypeScript, from the ground up: each imports from lower floors only. */
const FLOORS = [
  ['native'],
  ['system'],
  ['disks', 'network'],
  ['machines', 'images'],
  ['commands', 'sandboxes'],
  ['edge', 'control-link'],
];

/** The limits of a room, which all its folders import. */
const ROOM_LIMITS = /^(?:agent|control)\/[^/]+\/limits\.ts$/u;

async function sourcesOf(tree: string): Promise<string[]> {
  const entries = await readdir(join(root, tree), { recursive: true });
  return entries.filter((name) => name.endsWith('.ts')).map((name) => join(tree, name));
}

const importsOf = (file: string, text: string): string[] =>
  [...text.matchAll(/(?:from|import)\s*\(?\s*'(\.[^']+)'/gu)].map(([, path = '']) =>
    normalize(join(dirname(file), path)),
  );

/**
 * By folder, the other folders of `trees` that its files import from. The limits of a room count as
 * a folder below all others of it.
 * @param depth a folder that lies deeper counts as part of the one at this depth
 */
async function folderGraph(depth = Number.POSITIVE_INFINITY): Promise<Map<string, Set<string>>> {
  const folderOf = (file: string): string =>
    (ROOM_LIMITS.test(file) ? file : dirname(file)).split('/').slice(0, depth).join('/');
  const graph = new Map<string, Set<string>>();
  for (const file of (await Promise.all(trees.map(sourcesOf))).flat()) {
    const folder = folderOf(file);
    const targets = graph.get(folder) ?? new Set<string>();
    for (const imported of importsOf(file, await readFile(join(root, file), 'utf8'))) {
      if (folderOf(imported) !== folder) targets.add(folderOf(imported));
    }
    graph.set(folder, targets);
  }
  return graph;
}

for (const depth of [1, 2, 3, 4, 5]) {
  test(`no folders import each other in a circle, ${depth} deep`, async (t) => {
    const graph = await folderGraph(depth);
    t.true(graph.size >= trees.length);
    t.is(findCycle(graph)?.join(' → '), undefined);
  });
}

test('no folder lies deeper than is looked at', async (t) => {
  const graph = await folderGraph();
  t.true(graph.size > 30);
  t.deepEqual(
    [...graph.keys()].filter((folder) => folder.split('/').length > 5),
    [],
  );
});

test('the rooms of the agent import from lower floors only', async (t) => {
  const graph = await folderGraph(2);
  const rooms = [...graph.keys()].filter((folder) => folder.startsWith('agent/'));
  t.deepEqual(
    rooms.map((room) => room.slice('agent/'.length)).toSorted(),
    FLOORS.flat().toSorted(),
  );
  const floorOf = (room: string): number =>
    FLOORS.findIndex((names) => names.some((name) => room === `agent/${name}`));
  const upward = rooms.flatMap((room) =>
    [...(graph.get(room) ?? [])]
      .filter((to) => to === 'agent' || floorOf(to) >= floorOf(room))
      .map((to) => `${room} → ${to}`),
  );
  t.deepEqual(upward, []);
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

test('tests lie as their sources do', async (t) => {
  const folders = await Promise.all(
    ['agent', 'control', 'shared'].map(async (tree) => {
      const entries = await readdir(join(root, 'test', tree), { recursive: true });
      return entries.filter((name) => name.endsWith('.test.ts')).map((name) => join(tree, name));
    }),
  );
  const homes = new Set(folders.flat().map(dirname));
  t.true(homes.size > 30);
  for (const folder of homes) await t.notThrowsAsync(readdir(join(root, folder)), folder);
});

/** Folders whose own folders the map must all name. */
const LISTED = ['agent', 'clients', 'control', 'shared'];

const foldersIn = (text: string): string[] =>
  [...text.matchAll(/`([\w/-]+)\/`/gu)].map(([, name = '']) => name);

/** The folders that the map of docs/architecture.md names, each by its whole path. */
function namedFolders(page: string): string[] {
  const table = /^## Where to find what$([\s\S]*?)^## /mu.exec(page)?.[1] ?? '';
  return [...table.matchAll(/^\| (`.*?`) \| (.*) \|$/gmu)].flatMap(([, cell = '', text = '']) => {
    const [first, ...others] = foldersIn(cell);
    if (first === undefined) return []; // A folder that is not in git.
    const tree = first.split('/')[0] ?? '';
    // Folders within a folder are named in the text about it, or about the first of several.
    const within = foldersIn(text).map((name) => `${first}/${name}`);
    return [first, ...others.map((name) => `${tree}/${name}`), ...within];
  });
}

test('folders are read from the cells and the texts of a table', (t) => {
  const page = [
    '## Where to find what',
    '| Folder | Contents |',
    '| `agent/` | its root |',
    '| `agent/jobs/`, `links/` | jobs, `links/more/`; links |',
    '## Other',
    '| `bench/` | not in the table |',
  ].join('\n');
  const named = ['agent', 'agent/jobs', 'agent/links', 'agent/jobs/links/more'];
  t.deepEqual(namedFolders(page), named);
});

test('the folder map names every folder, and no other', async (t) => {
  const named = namedFolders(await readFile(join(root, 'docs/architecture.md'), 'utf8'));
  const listed = await Promise.all(
    LISTED.map(async (tree) => {
      const entries = await readdir(join(root, tree), { withFileTypes: true });
      return entries.flatMap((entry) => (entry.isDirectory() ? `${tree}/${entry.name}` : []));
    }),
  );
  t.deepEqual(
    listed.flat().filter((folder) => !named.includes(folder)),
    [],
  );
  for (const folder of named) {
    await t.notThrowsAsync(readdir(join(root, folder)), folder);
  }
});
