/*
 * The C sources have no cycles: a module can be read, tested and replaced together with what lies
 * below it. A module is what shares a base name (`x.c` and `x.h`); it depends on the modules whose
 * headers it includes. Programs of the host share nothing but the modules of common/.
 */
import { readdir, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import test from 'ava';
import { findCycle } from '../helpers/cycles.ts';

const root = join(import.meta.dirname, '../..');

/** By path within the directory, what each C file in it and in its folders contains. */
async function sourcesOf(directory: string): Promise<Map<string, string>> {
  const names = await readdir(join(root, directory), { recursive: true });
  const files = names.filter((name) => /\.[ch]$/u.test(name));
  const texts = files.map(
    async (name) => [name, await readFile(join(root, directory, name), 'utf8')] as const,
  );
  return new Map(await Promise.all(texts));
}

const moduleOf = (file: string): string => file.replace(/\.[ch]$/u, '');

function dependencies(sources: ReadonlyMap<string, string>): Map<string, Set<string>> {
  const graph = new Map<string, Set<string>>();
  for (const [file, text] of sources) {
    const targets = graph.get(moduleOf(file)) ?? new Set<string>();
    for (const [, path = ''] of text.matchAll(/^#include "([^"]+)"$/gmu)) {
      const included = moduleOf(join(dirname(file), path));
      if (included !== moduleOf(file)) targets.add(included);
    }
    graph.set(moduleOf(file), targets);
  }
  return graph;
}

const withoutComments = (text: string): string => text.replaceAll(/\/\*[\s\S]*?\*\//gu, '');

/** Functions that a header declares. */
const declared = (header: string): string[] =>
  [...withoutComments(header).matchAll(/^(?!typedef)\w[^;{}()=]*?\b(\w+)\([^;{]*\);$/gmu)].map(
    ([, name = '']) => name,
  );

const defines = (source: string, name: string): boolean =>
  new RegExp(`^(?!static)\\w[^;={}]*?\\b${name}\\([^;]*?\\) \\{`, 'mu').test(source);

test('a cycle is found and named', (t) => {
  const graph = dependencies(
    new Map([
      ['main.c', '#include "x/a.h"\n'],
      ['x/a.c', '#include "a.h"\n#include "../b.h"\n'],
      ['b.c', '#include <stdio.h>\n'],
      ['b.h', '#include "x/a.h"\n'],
    ]),
  );
  t.deepEqual(findCycle(graph), ['x/a', 'b', 'x/a']);
});

for (const directory of ['agent/guest', 'agent/native', 'test/fuzz/native']) {
  test(`no modules of ${directory} depend on each other`, async (t) => {
    const cycle = findCycle(dependencies(await sourcesOf(directory)));
    t.is(cycle?.join(' → '), undefined);
  });
}

/** Includes by which a program's folder needs another one than common/, as `module → module`. */
const crossings = (graph: ReadonlyMap<string, ReadonlySet<string>>): string[] =>
  [...graph].flatMap(([module, targets]) =>
    [...targets]
      .filter((to) => dirname(to) !== dirname(module) && dirname(to) !== 'common')
      .map((to) => `${module} → ${to}`),
  );

test('an include of another program is found, and one from common/', (t) => {
  const graph = dependencies(
    new Map([
      ['a/x.c', '#include "../common/z.h"\n#include "../b/y.h"\n#include "w.h"\n'],
      ['common/z.c', '#include "w.h"\n#include "../a/x.h"\n'],
    ]),
  );
  t.deepEqual(crossings(graph), ['a/x → b/y', 'common/z → a/x']);
});

test('a native program includes its own folder and common/ only', async (t) => {
  const graph = dependencies(await sourcesOf('agent/native'));
  t.true(graph.size > 50);
  t.deepEqual(crossings(graph), []);
});

// On hosts with systemd every mount is shared: clones and namespaces that are not made private show
// the host what is mounted in them.
test('mounts are cloned as private ones only, and new mount namespaces are made private', async (t) => {
  const sources = [...(await sourcesOf('agent/native'))];
  const naming = (pattern: RegExp): string[] =>
    sources.flatMap(([file, text]) => (pattern.test(withoutComments(text)) ? [file] : []));
  t.deepEqual(naming(/\bopen_tree\(|OPEN_TREE_CLONE/u), ['common/detached-tree.c']);
  const made = naming(/\b(?:unshare|clone\w*)\([^;]*CLONE_NEWNS/u);
  t.deepEqual(made.toSorted(), [
    'container-shim/container-root.c',
    'serve-disks/serve-disks.c',
    'shim/shim-confine.c',
  ]);
  const areMadePrivate = naming(
    /CLONE_NEWNS[^}]*\n[^}]*mount\(NULL, "\/", NULL, MS_REC \| MS_PRIVATE, NULL\)/u,
  );
  t.deepEqual(areMadePrivate, made);
});

for (const directory of ['agent/guest', 'agent/native']) {
  // Otherwise a function could be declared where no include shows the dependency.
  test(`what a header of ${directory} declares is defined by its own module`, async (t) => {
    const sources = await sourcesOf(directory);
    const misplaced: string[] = [];
    let count = 0;
    for (const [file, text] of sources) {
      if (!file.endsWith('.h')) continue;
      const source = withoutComments(sources.get(`${moduleOf(file)}.c`) ?? '');
      const names = declared(text);
      count += names.length;
      misplaced.push(
        ...names.filter((name) => !defines(source, name)).map((name) => `${file}: ${name}`),
      );
    }
    t.deepEqual(misplaced, []);
    t.true(count > 30);
  });
}
