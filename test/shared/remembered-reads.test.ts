import test from 'ava';
import { RememberedReads } from '../../shared/remembered-reads.ts';
import { waitFor } from '../helpers/wait.ts';

const HOUR_MS = 3_600_000;

/** Reads that give their number, counted from 0, or what is set instead. */
function makeLoads(answers: Record<number, Promise<number | undefined>> = {}) {
  let count = 0;
  const load = (): Promise<number | undefined> => {
    const number = count;
    count += 1;
    return answers[number] ?? Promise.resolve(number);
  };
  return load;
}

test('what was read is not read again until its time is over', async (t) => {
  const load = makeLoads();
  const reads = new RememberedReads<number | undefined>({ forMs: HOUR_MS, max: 10 });
  const all = [reads.read('a', load), reads.read('a', load), reads.read('b', load)];
  t.deepEqual(await Promise.all(all), [0, 0, 1]);
  t.is(await reads.read('a', load), 0);
  const short = new RememberedReads<number | undefined>({ forMs: 20, max: 10 });
  const first = await short.read('a', load);
  await waitFor('another read', async () => (await short.read('a', load)) !== first);
});

test('the time counts from the beginning of a read', async (t) => {
  const { promise: late, resolve } = Promise.withResolvers<number>();
  const reads = new RememberedReads<number | undefined>({ forMs: 20, max: 10 });
  const load = makeLoads({ 0: late });
  const first = reads.read('a', load);
  await waitFor('another read', async () => {
    const next = await Promise.race([reads.read('a', load), Promise.resolve()]);
    return next === 1;
  });
  resolve(0);
  t.is(await first, 0);
});

test('what is not there and what failed is read again', async (t) => {
  const failure = Promise.reject(new Error('away'));
  failure.catch(() => undefined);
  const load = makeLoads({ 0: Promise.resolve(undefined), 1: failure });
  const reads = new RememberedReads<number | undefined>({ forMs: HOUR_MS, max: 10 });
  t.is(await reads.read('a', load), undefined);
  await t.throwsAsync(reads.read('a', load), { message: 'away' });
  t.is(await reads.read('a', load), 2);
});

test('what is forgotten is read anew, also while it is read', async (t) => {
  const { promise: late, resolve } = Promise.withResolvers<number>();
  const load = makeLoads({ 0: late });
  const reads = new RememberedReads<number | undefined>({ forMs: HOUR_MS, max: 10 });
  const former = reads.read('a', load);
  reads.forget('a');
  t.is(await reads.read('a', load), 1);
  resolve(0);
  t.is(await former, 0);
  t.is(await reads.read('a', load), 1);
});

test('no more is remembered than it may', async (t) => {
  const load = makeLoads();
  const reads = new RememberedReads<number | undefined>({ forMs: HOUR_MS, max: 2 });
  for (const name of ['a', 'b', 'c']) await reads.read(name, load);
  t.is(await reads.read('c', load), 2);
  t.is(await reads.read('a', load), 3);
});
