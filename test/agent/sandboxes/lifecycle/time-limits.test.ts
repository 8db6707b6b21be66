import anyTest from 'ava';
import {
  dueAt,
  resetExpiry,
  TimeLimits,
} from '../../../../agent/sandboxes/lifecycle/time-limits.ts';
import { monotonicNow } from '../../../../agent/system/monotonic-clock.ts';
import { FakeTime } from '../../../helpers/fake-time.ts';

const { serial: test } = anyTest;

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
  t.regex(error.message, /for 82800 s$/u);
  t.throws(() => resetExpiry(begun, 1, begun + 25 * 3_600_000), { message: /for 0 s$/u });
});

/** Limits that write down when they were reached. */
function watched() {
  const time = new FakeTime();
  const reached: number[] = [];
  const limits = new TimeLimits(() => reached.push(monotonicNow()));
  return { time, limits, reached, [Symbol.dispose]: () => time[Symbol.dispose]() };
}

test('a limit is reported once when it is reached, and never early', async (t) => {
  using opened = watched();
  const { time, limits, reached } = opened;
  const expiresAt = monotonicNow() + 50;
  limits.watch({ ...none, expiresAt });
  await time.pass(49);
  t.false(limits.isReached);
  await time.pass(1_000, 1);
  t.deepEqual(reached, [expiresAt]);
  t.true(limits.isReached);
});

test('no limit is early or late when the wall clock is set', async (t) => {
  for (const stepMs of [-3_600_000, 3_600_000]) {
    using opened = watched();
    const { time, limits, reached } = opened;
    const expiresAt = monotonicNow() + 10_000;
    limits.watch({ ...none, expiresAt });
    time.setWallClock(Date.now() + stepMs);
    limits.watch({ ...none, expiresAt });
    await time.pass(20_000);
    t.deepEqual(reached, [expiresAt]);
  }
});

test('a limit further away than a timer goes is waited for', async (t) => {
  using opened = watched();
  const { time, limits, reached } = opened;
  const expiresAt = monotonicNow() + 2 ** 31 + 5_000;
  limits.watch({ ...none, expiresAt });
  await time.pass(2 ** 31 + 4_000, 2 ** 30);
  t.deepEqual(reached, []);
  await time.pass(2_000);
  t.deepEqual(reached, [expiresAt]);
});

test('a limit that passed long ago is reported at once, but not synchronously', async (t) => {
  using opened = watched();
  const { time, limits, reached } = opened;
  limits.watch({ ...none, expiresAt: 1 });
  t.is(reached.length, 0);
  await time.pass(1);
  t.is(reached.length, 1);
});

test('only the latest limits count, and none when nothing is watched', async (t) => {
  using opened = watched();
  const { time, limits, reached } = opened;
  limits.watch({ ...none, expiresAt: monotonicNow() + 20 });
  limits.watch({ ...none, idleSince: monotonicNow(), idleTtlSeconds: 1000 });
  await time.pass(60);
  limits.watch({ ...none, expiresAt: monotonicNow() + 20 });
  limits.watch(undefined);
  t.false(limits.isReached);
  await time.pass(60);
  t.deepEqual(reached, []);
});

test('a postponed limit is reported again after the delay, not before', async (t) => {
  using opened = watched();
  const { time, limits, reached } = opened;
  limits.watch({ ...none, expiresAt: 1 });
  await time.pass(1);
  const again = monotonicNow() + 50;
  limits.postpone(50);
  limits.watch({ ...none, expiresAt: 2 }); // Nothing new.
  t.false(limits.isReached);
  await time.pass(100, 1);
  t.is(reached.length, 2);
  t.is(reached[1], again);
});
