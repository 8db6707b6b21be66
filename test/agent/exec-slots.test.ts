import test from 'ava';
import { type ExecSlot, ExecSlots } from '../../agent/actors/exec-slots.ts';
import { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';

const never = new AbortController().signal;

/** Queues commands of accounts behind one that runs; returns the order in which they are admitted. */
async function admissionOrder(accounts: readonly string[]): Promise<string[]> {
  const slots = new ExecSlots(1);
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
  const slots = new ExecSlots(3);
  let running = 0;
  let peak = 0;
  await Promise.all(
    Array.from({ length: 100 }, async (_, i) => {
      const slot = await slots.acquire(`account-${i % 7}`, never);
      running += 1;
      peak = Math.max(peak, running);
      await new Promise((resolve) => {
        setImmediate(resolve);
      });
      running -= 1;
      slot.release();
    }),
  );
  t.is(peak, 3);
  t.is(slots.used, 0);
  t.is(slots.waiting, 0);
});

test('a place given back twice is given back once', async (t) => {
  const slots = new ExecSlots(1);
  const slot = await slots.acquire('a', never);
  slot.release();
  slot.release();
  t.is(slots.used, 0);
  await slots.acquire('a', never);
  t.is(slots.used, 1);
});

test('who stops waiting leaves the line, and the reason is thrown', async (t) => {
  const slots = new ExecSlots(1);
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
  const slots = new ExecSlots(1);
  const running = await slots.acquire('a', never);
  const waiting: Promise<ExecSlot>[] = [];
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
  const slots = new ExecSlots(1);
  await slots.acquire('a', never);
  const waiting = slots.acquire('a', never);
  slots.close(new AppError('unavailable', 'closing'));
  await t.throwsAsync(waiting, { code: 'unavailable' });
  await t.throwsAsync(slots.acquire('a', never), { code: 'unavailable' });
  t.is(slots.used, 1);
});
