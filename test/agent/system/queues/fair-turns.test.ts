import { setImmediate } from 'node:timers/promises';
import test from 'ava';
import { FairTurns, type Turn } from '../../../../agent/system/queues/fair-turns.ts';
import { AppError } from '../../../../shared/errors.ts';
import { COMMAND_LIMITS } from '../../../../agent/commands/limits.ts';

const never = new AbortController().signal;

/** @param perAccountMax default: as EXEC_SLOTS_PER_ACCOUNT of three quarters */
const newTurns = (
  count: number,
  perAccountMax = Math.max(1, count - Math.max(1, Math.floor(count / 4))),
): FairTurns =>
  new FairTurns({
    count,
    perAccountMax,
    waiting: {
      count: COMMAND_LIMITS.execsWaitingMax,
      perAccountMax: COMMAND_LIMITS.execsWaitingPerAccountMax,
    },
    waitMsMax: COMMAND_LIMITS.execWaitMsMax,
    refusal: 'too many',
  });

/** Takes turns for an account until one more would have to wait. */
async function takeAll(turns: FairTurns, account: string): Promise<Turn[]> {
  const taken: Turn[] = [];
  for (;;) {
    const giveUp = new AbortController();
    const attempt = turns.acquire(account, giveUp.signal);
    if (turns.waiting > 0) {
      giveUp.abort(new Error('full'));
      await attempt.catch(() => undefined);
      return taken;
    }
    taken.push(await attempt);
  }
}

/**
 * Queues commands of accounts behind one that runs; returns the order in which they are admitted.
 */
async function admissionOrder(accounts: readonly string[]): Promise<string[]> {
  const turns = newTurns(1);
  const running = await turns.acquire('running', never);
  const order: string[] = [];
  const all = accounts.map(async (account) => {
    const turn = await turns.acquire(account, never);
    order.push(account);
    turn.release();
  });
  running.release();
  await Promise.all(all);
  return order;
}

test('accounts take turns, however many commands one of them has waiting', async (t) => {
  const order = await admissionOrder(['a', 'a', 'a', 'a', 'b', 'c', 'b']);
  t.deepEqual(order, ['a', 'b', 'c', 'a', 'b', 'a', 'a']);
});

test('no more commands run at once than there are turns, and every command runs', async (t) => {
  const turns = newTurns(3);
  let running = 0;
  let peak = 0;
  await Promise.all(
    Array.from({ length: 100 }, async (_, i) => {
      const turn = await turns.acquire(`account-${i % 7}`, never);
      running += 1;
      peak = Math.max(peak, running);
      await setImmediate();
      running -= 1;
      turn.release();
    }),
  );
  t.is(peak, 3);
  t.is(turns.used, 0);
  t.is(turns.waiting, 0);
});

test('a turn that is released twice counts once', async (t) => {
  const turns = newTurns(1);
  const turn = await turns.acquire('a', never);
  turn.release();
  turn.release();
  t.is(turns.used, 0);
  await turns.acquire('a', never);
  t.is(turns.used, 1);
});

test('a request that is aborted leaves the queue and throws the signal’s reason', async (t) => {
  const turns = newTurns(1);
  const running = await turns.acquire('a', never);
  const hangUp = new AbortController();
  const waiting = turns.acquire('b', hangUp.signal);
  const behind = turns.acquire('b', never);
  const reason = new AppError('cancelled', 'gone');
  hangUp.abort(reason);
  t.is(await t.throwsAsync(waiting), reason);
  running.release();
  const turn = await behind;
  turn.release();
  t.is(turns.waiting, 0);
});

test('a request that has waited for too long leaves the queue and is refused', async (t) => {
  const turns = newTurns(1);
  const running = await turns.acquire('a', undefined);
  const waiting = turns.acquire('b', undefined, 20);
  const behind = turns.acquire('b', undefined, COMMAND_LIMITS.execWaitMsMax);
  await t.throwsAsync(waiting, { code: 'no_capacity', message: 'too many' });
  t.is(turns.waiting, 1);
  running.release();
  (await behind).release();
  t.is(turns.used, 0);
});

test('an account with too many waiting commands is refused while another account is admitted', async (t) => {
  const turns = newTurns(1);
  const running = await turns.acquire('a', never);
  const waiting: Promise<Turn>[] = [];
  let refusal: unknown;
  for (let i = 0; i <= COMMAND_LIMITS.execsWaitingPerAccountMax && refusal === undefined; i += 1) {
    const attempt = turns.acquire('a', never);
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
  await t.throwsAsync(turns.acquire('a', never), { code: 'no_capacity' });
  const other = turns.acquire('b', never);
  running.release();
  for (const attempt of waiting.slice(0, 1)) (await attempt).release();
  (await other).release();
  turns.close(new AppError('unavailable', 'closing'));
  await Promise.allSettled(waiting);
  t.pass();
});

test('closing refuses waiting and new requests, and leaves running commands alone', async (t) => {
  const turns = newTurns(1);
  await turns.acquire('a', never);
  const waiting = turns.acquire('a', never);
  turns.close(new AppError('unavailable', 'closing'));
  await t.throwsAsync(waiting, { code: 'unavailable' });
  await t.throwsAsync(turns.acquire('a', never), { code: 'unavailable' });
  t.is(turns.used, 1);
});

for (const count of [2, 3, 4, 5, 6, 7, 8]) {
  test(`an account that takes all it may of ${count} turns leaves one for another`, async (t) => {
    const turns = newTurns(count);
    const taken = await takeAll(turns, 'first');
    t.is(taken.length, count - Math.max(1, Math.floor(count / 4)));
    const other = turns.acquire('second', never);
    t.is(turns.waiting, 0);
    (await other).release();
  });
}

test('each further account gets a turn while earlier ones hold all they may', async (t) => {
  const turns = newTurns(64);
  const held: number[] = [];
  for (const account of ['a', 'b', 'c', 'd']) held.push((await takeAll(turns, account)).length);
  t.deepEqual(held, [48, 12, 3, 1]);
});

test('a released turn goes to the waiting account that holds the fewest', async (t) => {
  const turns = newTurns(8);
  const first = await takeAll(turns, 'first');
  const second = await takeAll(turns, 'second');
  t.deepEqual([first.length, second.length], [6, 1]);
  const admitted: string[] = [];
  const backlog = ['first', 'first', 'first', 'second', 'second', 'second'].map((account) =>
    turns.acquire(account, never).then(() => admitted.push(account)),
  );
  for (const turn of first.slice(0, 3)) turn.release();
  await setImmediate();
  t.deepEqual(admitted, ['second', 'second']);
  for (const turn of [...first, ...second]) turn.release();
  await Promise.all(backlog.slice(0, 5));
  turns.close(new AppError('unavailable', 'closing'));
  await Promise.allSettled(backlog);
});

test('an account whose share is the total may take every turn', async (t) => {
  t.is((await takeAll(newTurns(4, 4), 'only')).length, 4);
});
