import test from 'ava';
import { SharedReads } from '../../shared/shared-reads.ts';

/** Reads that end when the test says so; each gives its number. */
function makeLoads() {
  const ends: ((error?: Error) => void)[] = [];
  const load = (): Promise<number> => {
    const number = ends.length;
    return new Promise((resolve, reject) => {
      ends.push((error) => (error === undefined ? resolve(number) : reject(error)));
    });
  };
  return { ends, load };
}

test('who asks while a read is under way gets the next one, together with others', async (t) => {
  const reads = new SharedReads<number>();
  const { ends, load } = makeLoads();
  const first = reads.read('a', load);
  const others = [reads.read('a', load), reads.read('a', load)];
  t.is(ends.length, 1);
  ends[0]?.();
  t.is(await first, 0);
  await Promise.resolve();
  t.is(ends.length, 2);
  const last = reads.read('a', load);
  ends[1]?.();
  t.deepEqual(await Promise.all(others), [1, 1]);
  await Promise.resolve();
  ends[2]?.();
  t.is(await last, 2);
});

test('other names are read on their own', async (t) => {
  const reads = new SharedReads<number>();
  const { ends, load } = makeLoads();
  const both = Promise.all([reads.read('a', load), reads.read('b', load)]);
  for (const end of ends) end();
  t.deepEqual(await both, [0, 1]);
});

test('a read that fails fails those who share it, and not those after them', async (t) => {
  const reads = new SharedReads<number>();
  const { ends, load } = makeLoads();
  const failed = t.throwsAsync(reads.read('a', load), { message: 'away' });
  const next = reads.read('a', load);
  ends[0]?.(new Error('away'));
  await failed;
  await Promise.resolve();
  ends[1]?.();
  t.is(await next, 1);
});
