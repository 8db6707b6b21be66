/*
 * The simulated region of `npm run bench -- region`, so small that it only shows that all of it
 * works.
 */
import test, { type ExecutionContext } from 'ava';
import { measureRegion, type RegionFigures } from '../../bench/region-measure.ts';

const size = { agents: 20, sandboxesPerAgent: 25, disksPerAgent: 2, hostsPerProcess: 20 } as const;
const one = { controls: 2, linkedHosts: 1000, hasRedisCluster: false } as const;
const load = { actionsPerSecond: 10, seconds: 4 } as const;

/** Shows that all calls were made, and none failed. */
function assertServed(t: ExecutionContext, figures: RegionFigures): void {
  t.deepEqual(figures.failures, {});
  for (const [name, { calls }] of Object.entries(figures.latencies)) t.true(calls > 0, name);
}

test('a region of 20 hosts registers again after control was killed, and serves its callers', async (t) => {
  t.timeout(120_000);
  const figures = await measureRegion({ ...size, ...load, ...one }, (what) => t.log(what));
  t.is(figures.sandboxes, 500);
  assertServed(t, figures);
  for (const figure of [
    figures.registeredMs,
    figures.redisMiBPerThousandSandboxes,
    figures.controlMsPerAgentMinute,
  ]) {
    t.true(figure > 0);
  }
});

test('control nodes that want few of the hosts serve the callers of all', async (t) => {
  t.timeout(120_000);
  const small = { ...size, agents: 10, sandboxesPerAgent: 10 };
  const figures = await measureRegion(
    { ...small, ...load, ...one, controls: 5, linkedHosts: 1 },
    (what) => t.log(what),
  );
  assertServed(t, figures);
});
