import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { dueAt, resetExpiry, TimeLimits } from '../../../agent/sandboxes/time-limits.ts';
import { waitFor } from '../../helpers/wait.ts';

const NEVER = Number.POSITIVE_INFINITY;
const none = { expiresAt: undefined, idleSince: undefined, idleTtlSeconds: 0 };

const dues: readonly [string, Partial<typeof none> | object, number][] = [
  ['no limit', {}, NEVER],
  ['a time to live', { expiresAt: 5000 }, 5000],
  ['idle, without a limit for it', { idleSince: 1000 }, NEVER],
  ['idle', { idleSince: 1000, idleTtlSeconds: 2 }, 3000],
  ['in use, with a limit for being idle', { idleTtlSeconds: 2 }, NEVER],
  ['idle first', { expiresAt: 5000, idleSince: 1000, idleTtlSeconds: 2 }, 3000],
  ['expired first', { expiresAt: 2500, idleSince: 1000, idleTtlSeconds: 2 }, 2500],
];

for (const [name, times, expected] of dues) {
  test(`due: ${name}`, (t) => {
    t.is(dueAt({ ...none, ...times }), expected);
  });
}

test('a reset counts from now, and a session lasts no longer than a day', (t) => {
  const begun = 1_000_000_000;
  const now = begun + 3_600_000;
  t.is(resetExpiry(begun, 60, now), now + 60_000);
  t.is(resetExpiry(begun, 23 * 3600, now), begun + 24 * 3_600_000);
  const error = t.throws(() => resetExpiry(begun, 23 * 3600 + 1, now));
  t.like(error, { code: 'bad_request' });
  t.regex(error.message, /82800 seconds/u);
  t.throws(() => resetExpiry(begun, 1, begun + 25 * 3_600_000), { message: /for 0 seconds/u });
});

/** Limits that write down when they were reached. */
function watched(): { limits: TimeLimits; reached: number[] } {
  const reached: number[] = [];
  return { limits: new TimeLimits(() => reached.push(Date.now())), reached };
}

test('a limit is reported when it is reached, and never early', async (t) => {
  const { limits, reached } = watched();
  const expiresAt = Date.now() + 50;
  limits.watch({ ...none, expiresAt });
  t.false(limits.isReached);
  await waitFor('the limit', async () => reached.length > 0);
  t.true((reached[0] ?? 0) >= expiresAt);
  t.true(limits.isReached);
  await sleep(20);
  t.is(reached.length, 1);
});

test('a limit that passed long ago is reported at once, but not synchronously', async (t) => {
  const { limits, reached } = watched();
  limits.watch({ ...none, expiresAt: 1 });
  t.is(reached.length, 0);
  await waitFor('the limit', async () => reached.length === 1);
});

test('only the latest limits count, and none when nothing is watched', async (t) => {
  const { limits, reached } = watched();
  limits.watch({ ...none, expiresAt: Date.now() + 20 });
  limits.watch({ ...none, idleSince: Date.now(), idleTtlSeconds: 1000 });
  await sleep(60);
  limits.watch({ ...none, expiresAt: Date.now() + 20 });
  limits.watch(undefined);
  t.false(limits.isReached);
  await sleep(60);
  t.deepEqual(reached, []);
});

test('a postponed limit is reported again after the delay, not before', async (t) => {
  const { limits, reached } = watched();
  limits.watch({ ...none, expiresAt: 1 });
  await waitFor('the limit', async () => reached.length === 1);
  const again = Date.now() + 50;
  limits.postpone(50);
  limits.watch({ ...none, expiresAt: 2 }); // Nothing new.
  t.false(limits.isReached);
  await waitFor('the limit', async () => reached.length === 2);
  t.true((reached[1] ?? 0) >= again);
});
