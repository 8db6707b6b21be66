/*
 * A seeded run of faults under load: after each round every promise that callers were given is
 * compared with what is there (decision 0029). `npm run chaos -- --seed N` repeats one by hand.
 */
import { join } from 'node:path';
import test from 'ava';
import { Cluster } from '../chaos/cluster.ts';
import { planRound, PROCESS_PACES, PROCESS_RULES } from '../chaos/plan.ts';
import { describeRun } from '../chaos/report.ts';
import { ChaosRun } from '../chaos/run.ts';
import { isFull } from '../helpers/full.ts';

const DAY_MS = 86_400_000;
/** A new seed every day, the same in every run of that day. */
const seedOfDay = Math.floor(Date.now() / DAY_MS);
const FIXED_SEED = 1742;
/** Ordinary runs have one round of each seed, full ones ten minutes in all. */
const ROUND_MS = isFull ? 60_000 : 20_000;
const ROUNDS = isFull ? 5 : 1;

const plan = (seed: number, round: number) =>
  planRound(seed, round, {
    roundMs: 60_000,
    rules: PROCESS_RULES,
    paces: PROCESS_PACES,
    hosts: 2,
  });

test('a plan follows from its seed', (t) => {
  t.deepEqual(plan(7, 1), plan(7, 1));
  t.notDeepEqual(plan(7, 1), plan(7, 2));
  t.notDeepEqual(plan(7, 1), plan(8, 1));
});

test('whatever dies, nothing acknowledged is lost, nothing runs twice, and nothing is left behind', async (t) => {
  t.timeout(isFull ? 3 * 3_600_000 : 600_000);
  const logs = join(process.cwd(), `.local/chaos/${seedOfDay}`);
  const run = await ChaosRun.start((findings) => Cluster.start(findings));
  try {
    for (const seed of [FIXED_SEED, seedOfDay]) {
      for (let round = 0; round < ROUNDS; round += 1)
        await run.round(seed, round, { roundMs: ROUND_MS });
    }
  } finally {
    await run.stop(logs);
  }
  const repeat = `npm run chaos -- --seed ${seedOfDay} (and ${FIXED_SEED} before it)`;
  const report = describeRun(repeat, run, logs);
  t.log(report);
  t.deepEqual(run.findings.broken, []);
});
