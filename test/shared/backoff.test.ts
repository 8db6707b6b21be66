import test from 'ava';
import { Backoff, backoffMs } from '../../shared/backoff.ts';

const RANGE = { min: 50, max: 1_000 };

test('each pause is twice as long as the one before, up to the longest', (t) => {
  const backoff = new Backoff(RANGE);
  const pauses = Array.from({ length: 7 }, () => backoff.nextMs());
  t.deepEqual(pauses, [50, 100, 200, 400, 800, 1_000, 1_000]);
  backoff.reset();
  t.is(backoff.nextMs(), 50);
  t.is(backoffMs(100_000, RANGE), 1_000);
});

test('a pause lasts its time', async (t) => {
  const backoff = new Backoff({ min: 20, max: 20 });
  const begunAt = performance.now();
  await backoff.pause();
  t.true(performance.now() - begunAt >= 19);
});

test('a pause ends without an error when its signal is aborted', async (t) => {
  const backoff = new Backoff({ min: 60_000, max: 60_000 });
  await backoff.pause({ signal: AbortSignal.abort() });
  const closing = new AbortController();
  const paused = backoff.pause({ signal: closing.signal, ref: false });
  closing.abort(new Error('closed'));
  await paused;
  t.pass();
});
