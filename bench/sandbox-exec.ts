import assert from 'node:assert';
import { join } from 'node:path';
import { readIdentity } from '../agent/machines/shim/shim-files.ts';
import { runInGuest } from './bare-slot.ts';
import { processorMs } from './process-usage.ts';
import { newSandbox, type SandboxBench, sandboxDirectory } from './sandbox-bench.ts';
import { inTurns, median, printComparison, printRows, timed } from './statistics.ts';

const COMMAND = 'echo ready';
/** Commands of each side before its turn counts: an emulator translates code as it first runs. */
const UNMEASURED = 5;
/** Commands of each side in one round. */
const IN_A_ROW = 10;

/** The process that runs a sandbox's guest. */
async function machinePid(bench: SandboxBench, id: string): Promise<number> {
  const identity = await readIdentity(join(await sandboxDirectory(bench, id), 'run'));
  assert(identity !== undefined);
  return identity.machine.pid;
}

/** Commands in a running sandbox over HTTP, beside the same on the channel of a bare machine. */
export async function benchExec(bench: SandboxBench): Promise<void> {
  const { bare, calls, memSizeMib, rounds, stack } = bench;
  const id = await newSandbox(bench);
  await using machine = await bare.start();
  const { channel } = machine;
  const pids = {
    'its machine': await machinePid(bench, id),
    'the agent': stack.agent.pid,
    control: stack.control.pid,
  };
  const processors = async (): Promise<number[]> =>
    Promise.all(Object.values(pids).map(processorMs));
  const ours = () => calls.output(id, COMMAND);
  const baseline = () => runInGuest(channel, COMMAND);
  const measurements = {
    async ours() {
      await inTurns(UNMEASURED, { ours });
      const before = await processors();
      const { of } = await inTurns(IN_A_ROW, { of: () => timed(ours) });
      const after = await processors();
      const spent = after.map((at, index) => (at - (before[index] ?? 0)) / IN_A_ROW);
      return { ms: median(of), spent };
    },
    async baseline() {
      const { of } = await inTurns(IN_A_ROW, { of: () => timed(baseline) }, UNMEASURED);
      return median(of);
    },
  };
  const times = await inTurns(rounds, measurements, 1);
  channel.close();
  await calls.remove(id);
  printComparison(
    `\`${COMMAND}\` in a running sandbox of ${memSizeMib} MiB, ${rounds} alternating rounds of ${IN_A_ROW}`,
    { ours: times.ours.map(({ ms }) => ms), baseline: times.baseline },
    { ours: 'HTTP', baseline: 'bare guest channel' },
    { unit: 'ms', target: '≤ 0.7, and HTTP ≤ 25 ms' },
  );
  const rows = Object.keys(pids).map((name, index) => ({
    name,
    samples: times.ours.map(({ spent }) => spent[index] ?? Number.NaN),
  }));
  printRows('processor time of one command', rows, 'ms');
}
