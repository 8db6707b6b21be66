import test from 'ava';
import { BootTurns } from '../../../agent/sandboxes/boot-turns.ts';

const { signal } = new AbortController();
const isPending = async (promise: Promise<unknown>): Promise<boolean> =>
  (await Promise.race([
    promise.then(() => false),
    new Promise((resolve) => setImmediate(resolve, true)),
  ])) === true;

test('so many at once, the others in the order in which they came', async (t) => {
  const turns = new BootTurns(2);
  const ends = [await turns.take(signal), await turns.take(signal)];
  const [third, fourth] = [turns.take(signal), turns.take(signal)];
  t.true(await isPending(third));
  ends[0]?.();
  ends[0]?.(); // Once is enough.
  t.false(await isPending(third));
  t.true(await isPending(fourth));
  (await third)();
  t.false(await isPending(fourth));
});

test('who gives up while it waits takes no turn', async (t) => {
  const turns = new BootTurns(1);
  const end = await turns.take(signal);
  const gone = new AbortController();
  const [second, third] = [turns.take(gone.signal), turns.take(signal)];
  gone.abort(new Error('gone'));
  await t.throwsAsync(second, { message: 'gone' });
  await t.throwsAsync(turns.take(gone.signal), { message: 'gone' });
  end();
  t.false(await isPending(third));
});
