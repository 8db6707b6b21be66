import { setImmediate, setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { SharedWork, type Waiting } from '../../../agent/images/shared-work.ts';
import { FairTurns } from '../../../agent/system/queues/fair-turns.ts';

/** Work that lasts until it is given up. */
const endless = (): SharedWork<number> =>
  new SharedWork((signal) => sleep(3_600_000, undefined, { signal }));

/** Somebody who gets a turn at once. */
const free = (signal: AbortSignal): Waiting<number> => ({
  signal,
  acquire: async () => ({ release: () => undefined }),
});

test('work is given up when the last of those who wait for it leaves', async (t) => {
  const work = endless();
  const [first, second] = [new AbortController(), new AbortController()];
  const joined = work.join(free(first.signal));
  const others = work.join(free(second.signal));
  await setImmediate(); // The work begins.
  first.abort(new Error('first left'));
  await t.throwsAsync(joined, { message: 'first left' });
  t.false(work.isAbandoned);
  second.abort(new Error('second left'));
  await t.throwsAsync(others, { message: 'second left' });
  t.true(work.isAbandoned);
  await t.throwsAsync(work.ended, { name: 'AbortError' });
});

test('work for somebody who had left already is never begun', async (t) => {
  let isBegun = false;
  const work = new SharedWork<number>(async () => {
    isBegun = true;
  });
  const gone = free(AbortSignal.abort(new Error('left')));
  await t.throwsAsync(work.join(gone), { message: 'left' });
  t.true(work.isAbandoned);
  await t.throwsAsync(work.ended, { message: 'left' });
  t.false(isBegun);
});

test('somebody who had left already does not end the work of others', async (t) => {
  const work = new SharedWork<number>(() => sleep(20));
  const waits = work.join(free(new AbortController().signal));
  const gone = free(AbortSignal.abort(new Error('left')));
  await t.throwsAsync(work.join(gone), { message: 'left' });
  t.false(work.isAbandoned);
  await t.notThrowsAsync(waits);
});

test('the first turn that comes begins the work, and gives the other waits up', async (t) => {
  const turns = new FairTurns({ count: 2, perAccountMax: 1, refusal: 'too many' });
  const { signal } = new AbortController();
  const waiterOf = (account: string): Waiting<number> => ({
    signal,
    acquire: (wait) => turns.acquire(account, wait),
  });
  const busy = await turns.acquire('busy', undefined);
  const done = Promise.withResolvers<void>();
  let runs = 0;
  const work = new SharedWork<number>(() => {
    runs += 1;
    return done.promise;
  });
  const first = work.join(waiterOf('busy'));
  t.is(turns.waiting, 1, 'the account has its share');
  const second = work.join(waiterOf('idle'));
  await setImmediate();
  t.deepEqual([runs, turns.used, turns.waiting], [1, 2, 0]);
  const third = work.join(waiterOf('third'));
  t.is(turns.waiting, 0, 'the work has begun');
  done.resolve();
  await Promise.all([first, second, third]);
  t.deepEqual([runs, turns.used], [1, 1]);
  busy.release();
});

test('somebody who gets no turn leaves the others waiting, and alone gives the work up', async (t) => {
  const work = new SharedWork<number>(async () => undefined);
  const full = new Error('full');
  const refused = { signal: new AbortController().signal, acquire: () => Promise.reject(full) };
  const turn = Promise.withResolvers<{ release: () => void }>();
  const waits = work.join({ signal: refused.signal, acquire: () => turn.promise });
  await t.throwsAsync(work.join(refused), { message: 'full' });
  t.false(work.isAbandoned);
  turn.resolve({ release: () => undefined });
  await t.notThrowsAsync(waits);
  const alone = endless();
  await t.throwsAsync(alone.join(refused), { message: 'full' });
  await t.throwsAsync(alone.ended);
});
