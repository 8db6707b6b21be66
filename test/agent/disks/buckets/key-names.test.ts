import test from 'ava';
import { conflictName, whyNoPath } from '../../../../agent/disks/buckets/key-names.ts';

for (const key of [
  'a//b',
  '/a',
  'a/./b',
  '../a',
  'a\0b',
  `a/${'x'.repeat(256)}`,
  'a\uFFFDb',
  'a/',
]) {
  test(`a key that cannot be a path is told: ${JSON.stringify(key.slice(0, 20))}`, (t) => {
    t.is(typeof whyNoPath(key), 'string');
  });
}

for (const key of ['a', 'a/b.c', 'line\nfeed', ' ', '...', 'é'.repeat(127), '-rf']) {
  test(`a key that can be a path is taken: ${JSON.stringify(key.slice(0, 20))}`, (t) => {
    t.is(whyNoPath(key), undefined);
  });
}

test('the name of the other version in a conflict is a file name beside the file', (t) => {
  const now = new Date('2026-03-01T12:00:00.000Z');
  t.is(conflictName('dir/a.txt', now), 'dir/a.txt.conflict-20260301T120000000Z');
  t.is(whyNoPath(conflictName(`dir/${'é'.repeat(127)}`, now)), undefined);
});
