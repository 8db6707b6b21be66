import test from 'ava';
import {
  dependentForksOf,
  depthOf,
  type Kin,
} from '../../../../agent/sandboxes/holds/fork-tree.ts';

/** Pairs of child and parent; a sandbox's disk is named after it. */
const family = (...pairs: readonly (readonly [string, string?])[]): ReadonlyMap<string, Kin> =>
  new Map(pairs.map(([id, parentId]) => [id, { id, parentId, rootDiskId: `disk-${id}` }]));

test('a sandbox without forks has no dependents', (t) => {
  const all = family(['a'], ['b'], ['c', 'b']);
  t.is(dependentForksOf('a', all), undefined);
  t.is(dependentForksOf('c', all), undefined);
  t.is(dependentForksOf('unknown', all), undefined);
});

test('all descendants count, and the deepest are named first', (t) => {
  const all = family(['a'], ['b', 'a'], ['c', 'a'], ['d', 'b'], ['e', 'd'], ['z']);
  t.deepEqual(dependentForksOf('a', all), {
    count: 4,
    diskIds: ['disk-e', 'disk-d', 'disk-c', 'disk-b'],
  });
  t.deepEqual(dependentForksOf('d', all), { count: 1, diskIds: ['disk-e'] });
});

test('no more than ten dependents are named', (t) => {
  const children = Array.from({ length: 30 }, (_, n) => [`child-${n}`, 'a'] as const);
  const all = family(['a'], ...children, ['deep', 'child-0']);
  const found = dependentForksOf('a', all);
  t.is(found?.count, 31);
  t.is(found?.diskIds.length, 10);
  t.is(found?.diskIds[0], 'disk-deep');
});

test('the depth of a fork is the number of its ancestors', (t) => {
  const all = family(['a'], ['b', 'a'], ['c', 'b'], ['d', 'c']);
  t.deepEqual(
    ['a', 'b', 'c', 'd'].map((id) => depthOf(id, all)),
    [0, 1, 2, 3],
  );
});
