import { setImmediate } from 'node:timers/promises';
import test from 'ava';
import { SerialQueue } from '../../../../agent/system/queues/serial-queue.ts';

test('work is done one piece at a time, in order, whatever fails', async (t) => {
  const queue = new SerialQueue();
  const done: string[] = [];
  const piece = (name: string) => async (): Promise<string> => {
    done.push(`${name} begins`);
    await setImmediate();
    done.push(`${name} ends`);
    if (name === 'b') throw new Error('broken');
    return name;
  };
  const added = ['a', 'b', 'c'].map((name) => queue.add(piece(name)));
  t.is(queue.length, 3);
  const outcomes = await Promise.allSettled(added);
  t.deepEqual(
    outcomes.map(({ status }) => status),
    ['fulfilled', 'rejected', 'fulfilled'],
  );
  t.deepEqual(done, ['a begins', 'a ends', 'b begins', 'b ends', 'c begins', 'c ends']);
  t.is(queue.length, 0);
});

test('a queue is idle when all that was added has been done, though it failed', async (t) => {
  const queue = new SerialQueue();
  await queue.idle;
  let ended = false;
  const failing = queue.add(async () => {
    await setImmediate();
    ended = true;
    throw new Error('broken');
  });
  const caught = t.throwsAsync(failing, { message: 'broken' });
  await queue.idle;
  t.true(ended);
  await caught;
});
