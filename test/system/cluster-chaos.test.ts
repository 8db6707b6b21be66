/*
 * Three hosts with mounts of their own of one Ceph, three Redis with Sentinels, two control nodes
 * behind haproxy, TLS everywhere: hosts, Redis primaries, control nodes and daemons of Ceph are
 * killed and cut off while callers go on (decision 0029). `npm run chaos -- --cluster --seed N`
 * repeats one by hand. Only with BERTH_TEST_FULL=1, since Ceph is no package that Berth needs.
 */
import { join } from 'node:path';
import test from 'ava';
import { MachineCluster } from '../chaos/machine-cluster.ts';
import { describeRun } from '../chaos/report.ts';
import { ChaosRun } from '../chaos/run.ts';
import { isFull } from '../helpers/full.ts';

const SEED = 3;
const ROUND_MS = 60_000;
const ROUNDS = 2;

(isFull ? test : test.skip)('a cluster on Ceph keeps its promises, whatever dies', async (t) => {
  t.timeout(1_800_000);
  const logs = join(process.cwd(), `.local/chaos/cluster-${SEED}`);
  const run = await ChaosRun.start((findings) => MachineCluster.start(findings));
  try {
    for (let round = 0; round < ROUNDS; round += 1)
      await run.round(SEED, round, { roundMs: ROUND_MS });
  } finally {
    await run.stop(logs);
  }
  const repeat = `npm run chaos -- --cluster --seed ${SEED} --minutes ${ROUNDS}`;
  const report = describeRun(repeat, run, logs);
  t.log(report);
  t.deepEqual(run.findings.broken, []);
});
