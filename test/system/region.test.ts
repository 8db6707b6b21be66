/* The simulated region of `npm run bench -- region`, so small that it only shows that all of it works. */
import test from 'ava';
import { measureRegion } from '../../bench/region-measure.ts';

test('a region of 20 hosts registers again after control was killed, and serves its callers', async (t) => {
  t.timeout(120_000);
  const figures = await measureRegion(
    {
      ...{ agents: 20, sandboxesPerAgent: 25, disksPerAgent: 2, hostsPerProcess: 20 },
      ...{ actionsPerSecond: 10, seconds: 2 },
    },
    (what) => t.log(what),
  );
  t.deepEqual(figures.failures, {});
  t.is(figures.sandboxes, 500);
  for (const [name, { calls }] of Object.entries(figures.latencies)) t.true(calls > 0, name);
  for (const figure of [
    figures.registeredMs,
    figures.redisMiBPerThousandSandboxes,
    figures.controlMsPerAgentMinute,
    figures.redisMsPerAgentMinute,
  ]) {
    t.true(figure > 0);
  }
});
