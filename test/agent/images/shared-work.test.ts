import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { SharedWork } from '../../../agent/images/shared-work.ts';

/** Work that lasts until it is given up. */
const endless = (): SharedWork<number> =>
  new SharedWork((signal) => sleep(3_600_000, undefined, { signal }));

test('work is given up when the last of those who wait for it leaves', async (t) => {
  const work = endless();
  const [first, second] = [new AbortController(), new AbortController()];
  const joined = work.join(first.signal);
  const others = work.join(second.signal);
  first.abort(new Error('first left'));
  await t.throwsAsync(joined, { message: 'first left' });
  t.false(work.isAbandoned);
  second.abort(new Error('second left'));
  await t.throwsAsync(others, { message: 'second left' });
  t.true(work.isAbandoned);
  await t.throwsAsync(work.ended, { name: 'AbortError' });
});

test('work that was begun for somebody who had left already is given up', async (t) => {
  const work = endless();
  await t.throwsAsync(work.join(AbortSignal.abort(new Error('left'))), { message: 'left' });
  t.true(work.isAbandoned);
  await t.throwsAsync(work.ended, { name: 'AbortError' });
});

test('somebody who had left already does not end the work of others', async (t) => {
  const work = new SharedWork<number>(() => sleep(20));
  const waits = work.join(new AbortController().signal);
  await t.throwsAsync(work.join(AbortSignal.abort(new Error('left'))), { message: 'left' });
  t.false(work.isAbandoned);
  await t.notThrowsAsync(waits);
});
