/*
 * Sandboxes under random requests, crashes and faults: everything that a caller was told stays true
 * (decision 0029). `npm run simulate -- --seed N` repeats one by hand.
 */
import anyTest from 'ava';
import { describeRun } from './report.ts';
import { Simulator } from './surroundings.ts';
import { isFull } from '../helpers/full.ts';

const { serial: test } = anyTest;

const DAY_MS = 86_400_000;
/** Another one each day, the same in every run of the day. */
const seedOfDay = Math.floor(Date.now() / DAY_MS);
const FIXED_SEED = 1742;
const STEPS = 10_000;
/** Each has a seed of its own: a million steps altogether with `--full`, else some seconds. */
const RUNS = isFull ? 100 : 2;

const seeds = Array.from({ length: RUNS }, (_, index) =>
  index === 0 ? FIXED_SEED : seedOfDay + index - 1,
);

test('whatever crashes or fails, nothing acknowledged is lost, nothing is shared or left', async (t) => {
  t.timeout((isFull ? 180 : 5) * 60_000);
  await using simulator = await Simulator.open();
  const judged = new Set<string>();
  for (const seed of seeds) {
    const run = await simulator.run(seed, STEPS);
    for (const kind of run.counts.keys()) judged.add(kind);
    if (run.broken.length === 0) continue;
    t.log(describeRun(run));
    t.log(describeRun(await simulator.shrink(run)));
    return t.fail(`seed ${seed}: ${run.broken.join('; ')}`);
  }
  // A single run may reach no time limit.
  for (const kind of ['session', 'limit', 'crash', 'rest']) t.true(judged.has(kind), kind);
});

test('a seed gives the same run again', async (t) => {
  await using simulator = await Simulator.open();
  const [one, two] = [
    await simulator.run(FIXED_SEED, 1_000),
    await simulator.run(FIXED_SEED, 1_000),
  ];
  t.deepEqual(one.trace, two.trace);
});
