import test from 'ava';
import { DrawableMap } from '../../../control/region/drawable-map.ts';

const filled = (count: number): DrawableMap<number, string> => {
  const map = new DrawableMap<number, string>();
  for (let key = 0; key < count; key += 1) map.set(key, `value ${key}`);
  return map;
};

const keysOf = (entries: Iterable<readonly [number, string]>): number[] =>
  [...entries].map(([key]) => key).sort((a, b) => a - b);

test('a drawable map finds, replaces and forgets entries, also after a draw', (t) => {
  const map = filled(5);
  t.is(map.drawn().take(3).toArray().length, 3);
  map.set(2, 'another');
  map.delete(0);
  map.delete(0);
  t.is(map.size, 4);
  t.is(map.get(0), undefined);
  t.is(map.get(2), 'another');
  t.is(map.get(4), 'value 4');
  t.deepEqual(keysOf(map.entries()), [1, 2, 3, 4]);
  for (const key of [1, 2, 3, 4]) map.delete(key);
  t.deepEqual([...map.drawn()], []);
});

test('a whole draw gives each entry once', (t) => {
  const map = filled(50);
  for (let draw = 0; draw < 20; draw += 1) {
    t.deepEqual(
      keysOf(map.drawn()),
      Array.from({ length: 50 }, (_, key) => key),
    );
  }
});

test('every entry comes first at some draw', (t) => {
  const map = filled(4);
  const first = new Set<number>();
  // Another outcome has a probability of 4 × 0.75 ** 200.
  for (let draw = 0; draw < 200; draw += 1) first.add(map.drawn().toArray()[0]?.[0] ?? -1);
  t.is(first.size, 4);
});
