/*
 * Sandboxes under random requests, crashes and faults: everything that a caller was told stays true
 * (decision 0031). `npm run simulate -- --seed N` repeats one by hand.
 */
import test from 'ava';
import { describeRun } from './report.ts';
import { Simulator } from './surroundings.ts';

const isFull = process.env['BERTH_TEST_FULL'] === '1';

const DAY_MS = 86_400_000;
/** Another one each day, the same in every run of the day. */
const seedOfDay = Math.floor(Date.now() / DAY_MS);
const FIXED_SEED = 1742;
const STEPS = 10_000;
/** Each has a seed of its own: a million steps altogether. */
const RUNS = 100;

/**
 * Not in every run yet: about one seed in twenty reports a limit that came early when the wall clock
 * had been set (docs/decisions/0031-seeded-simulation.md).
 */
const fullTest = isFull ? test : test.skip;

const seeds = Array.from({ length: RUNS }, (_, index) =>
  index === 0 ? FIXED_SEED : seedOfDay + index - 1,
);

fullTest(
  'whatever crashes or fails, nothing acknowledged is lost, nothing is shared or left',
  async (t) => {
    t.timeout(3 * 3_600_000);
    await using simulator = await Simulator.open();
    for (const seed of seeds) {
      const run = await simulator.run(seed, STEPS);
      if (run.broken.length === 0) continue;
      t.log(describeRun(run));
      t.log(describeRun(await simulator.shrink(run)));
      return t.fail(`seed ${seed}: ${run.broken.join('; ')}`);
    }
    t.pass();
  },
);
