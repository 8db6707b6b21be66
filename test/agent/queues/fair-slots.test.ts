import { setImmediate } from 'node:timers/promises';
import test from 'ava';
import { FairSlots, type Slot } from '../../../agent/queues/fair-slots.ts';
import { AppError } from '../../../shared/errors.ts';
import { LIMITS } from '../../../shared/limits.ts';

const never = new AbortController().signal;

/** @param perAccountMax default: as EXEC_SLOTS_PER_ACCOUNT of three quarters */
const newSlots = (
  count: number,
  perAccountMax = Math.max(1, count - Math.max(1, Math.floor(count / 4))),
): FairSlots =>
  new FairSlots({
    count,
    perAccountMax,
    waiting: { count: LIMITS.execsWaitingMax, perAccountMax: LIMITS.execsWaitingPerAccountMax },
    waitMsMax: LIMITS.execWaitMsMax,
    refusal: 'too many',
  });

/** Takes places for an account until one more would have to wait. */
async function takeAll(slots: FairSlots, account: string): Promise<Slot[]> {
  const taken: Slot[] = [];
  for (;;) {
    const giveUp = new AbortController();
    const attempt = slots.acquire(account, giveUp.signal);
    if (slots.waiting > 0) {
      giveUp.abort(new Error('full'));
      await attempt.catch(() => undefined);
      return taken;
    }
    taken.push(await attempt);
  }
}

/** Queues commands of accounts behind one that runs; returns the order in which they are admitted. */
async function admissionOrder(accounts: readonly string[]): Promise<string[]> {
  const slots = newSlots(1);
  const running = await slots.acquire('running', never);
  const order: string[] = [];
  const all = accounts.map(async (account) => {
    const slot = await slots.acquire(account, never);
    order.push(account);
    slot.release();
  });
  running.release();
  await Promise.all(all);
  return order;
}

test('accounts take turns, however many commands one of them has waiting', async (t) => {
  const order = await admissionOrder(['a', 'a', 'a', 'a', 'b', 'c', 'b']);
  t.deepEqual(order, ['a', 'b', 'c', 'a', 'b', 'a', 'a']);
});

test('no more commands run at once than there are places, and none is lost', async (t) => {
  const slots = newSlots(3);
  let running = 0;
  let peak = 0;
  await Promise.all(
    Array.from({ length: 100 }, async (_, i) => {
      const slot = await slots.acquire(`account-${i % 7}`, never);
      running += 1;
      peak = Math.max(peak, running);
      await setImmediate();
      running -= 1;
      slot.release();
    }),
  );
  t.is(peak, 3);
  t.is(slots.used, 0);
  t.is(slots.waiting, 0);
});

test('a place given back twice is given back once', async (t) => {
  const slots = newSlots(1);
  const slot = await slots.acquire('a', never);
  slot.release();
  slot.release();
  t.is(slots.used, 0);
  await slots.acquire('a', never);
  t.is(slots.used, 1);
});

test('who stops waiting leaves the line, and the reason is thrown', async (t) => {
  const slots = newSlots(1);
  const running = await slots.acquire('a', never);
  const hangUp = new AbortController();
  const waiting = slots.acquire('b', hangUp.signal);
  const behind = slots.acquire('b', never);
  const reason = new AppError('cancelled', 'gone');
  hangUp.abort(reason);
  t.is(await t.throwsAsync(waiting), reason);
  running.release();
  const slot = await behind;
  slot.release();
  t.is(slots.waiting, 0);
});

test('an account with too many commands waiting is refused while another is admitted', async (t) => {
  const slots = newSlots(1);
  const running = await slots.acquire('a', never);
  const waiting: Promise<Slot>[] = [];
  let refusal: unknown;
  for (let i = 0; i <= LIMITS.execsWaitingPerAccountMax && refusal === undefined; i += 1) {
    const attempt = slots.acquire('a', never);
    const refused = await Promise.race([
      attempt.then(
        () => undefined,
        (error: unknown) => error,
      ),
      Promise.resolve('waits'),
    ]);
    if (refused === 'waits') waiting.push(attempt);
    else refusal = refused;
  }
  await t.throwsAsync(slots.acquire('a', never), { code: 'no_capacity' });
  const other = slots.acquire('b', never);
  running.release();
  for (const attempt of waiting.slice(0, 1)) (await attempt).release();
  (await other).release();
  slots.close(new AppError('unavailable', 'closing'));
  await Promise.allSettled(waiting);
  t.pass();
});

test('closing refuses those who wait and those who come, and leaves those who run', async (t) => {
  const slots = newSlots(1);
  await slots.acquire('a', never);
  const waiting = slots.acquire('a', never);
  slots.close(new AppError('unavailable', 'closing'));
  await t.throwsAsync(waiting, { code: 'unavailable' });
  await t.throwsAsync(slots.acquire('a', never), { code: 'unavailable' });
  t.is(slots.used, 1);
});

for (const count of [2, 3, 4, 5, 6, 7, 8]) {
  test(`an account that takes all it can of ${count} places leaves one for another`, async (t) => {
    const slots = newSlots(count);
    const taken = await takeAll(slots, 'first');
    t.is(taken.length, count - Math.max(1, Math.floor(count / 4)));
    const other = slots.acquire('second', never);
    t.is(slots.waiting, 0);
    (await other).release();
  });
}

test('each further account finds a place while those before it hold all they can', async (t) => {
  const slots = newSlots(64);
  const held: number[] = [];
  for (const account of ['a', 'b', 'c', 'd']) held.push((await takeAll(slots, account)).length);
  t.deepEqual(held, [48, 12, 3, 1]);
});

test('a place that becomes free goes to the waiting account that holds the fewest', async (t) => {
  const slots = newSlots(8);
  const first = await takeAll(slots, 'first');
  const second = await takeAll(slots, 'second');
  t.deepEqual([first.length, second.length], [6, 1]);
  const admitted: string[] = [];
  const backlog = ['first', 'first', 'first', 'second', 'second', 'second'].map((account) =>
    slots.acquire(account, never).then(() => admitted.push(account)),
  );
  for (const slot of first.slice(0, 3)) slot.release();
  await setImmediate();
  t.deepEqual(admitted, ['second', 'second']);
  for (const slot of [...first, ...second]) slot.release();
  await Promise.all(backlog.slice(0, 5));
  slots.close(new AppError('unavailable', 'closing'));
  await Promise.allSettled(backlog);
});

test('an account may use every place when its share says so', async (t) => {
  t.is((await takeAll(newSlots(4, 4), 'only')).length, 4);
});
