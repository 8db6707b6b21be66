import assert from 'node:assert';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { join } from 'node:path';
import type { GuestChannel } from '../agent/machines/guest-link/guest-channel.ts';
import { readIdentity } from '../agent/machines/shim/shim-files.ts';
import { processorMs } from './process-usage.ts';
import { newSandbox, type SandboxBench, sandboxDirectory } from './sandbox-bench.ts';
import { median, printComparison, printRows, timed } from './statistics.ts';

const COMMAND = 'echo ready';
/** Commands of each side before its turn counts: an emulator translates code as it first runs. */
const UNMEASURED = 5;
/** Commands of each side in one round. */
const IN_A_ROW = 10;

/** Runs a command over the guest's channel, from its start until it is forgotten. */
async function runBare(channel: GuestChannel): Promise<void> {
  const id = randomUUID();
  const exited = once(channel, 'exited');
  const place = { environment: {}, directory: '', user: '', timeoutMs: undefined };
  const streams = { terminal: undefined, stdin: false, isFollowed: true, isAttachable: false };
  await channel.start({ id, command: COMMAND, ...place, ...streams });
  await exited;
  await channel.forget(id);
}

/** The process that runs a sandbox's guest. */
async function machinePid(bench: SandboxBench, id: string): Promise<number> {
  const identity = await readIdentity(join(await sandboxDirectory(bench, id), 'run'));
  assert(identity !== undefined);
  return identity.machine.pid;
}

/** Commands in a running sandbox over HTTP, beside the same on the channel of a bare machine. */
export async function benchExec(bench: SandboxBench): Promise<void> {
  const { bare, calls, memSizeMib, rounds, signal, stack } = bench;
  const id = await newSandbox(bench);
  await using machine = await bare.start(signal);
  const { channel } = machine;
  channel.on('output', ({ processId, offset, bytes }) => {
    channel.acknowledge(processId, offset + bytes.length);
  });
  const pids = {
    'its machine': await machinePid(bench, id),
    'the agent': stack.agent.pid,
    control: stack.control.pid,
  };
  const processors = async (): Promise<number[]> =>
    Promise.all(Object.values(pids).map(processorMs));
  const times = { ours: [] as number[], baseline: [] as number[] };
  const spent: number[][] = [];
  for (let round = 0; round <= rounds; round += 1) {
    const ours: number[] = [];
    for (let count = 0; count < UNMEASURED; count += 1) await calls.output(id, COMMAND);
    const before = await processors();
    for (let count = 0; count < IN_A_ROW; count += 1) {
      ours.push(await timed(async () => void (await calls.output(id, COMMAND))));
    }
    const after = await processors();
    const baseline: number[] = [];
    for (let count = 0; count < UNMEASURED; count += 1) await runBare(channel);
    for (let count = 0; count < IN_A_ROW; count += 1) {
      baseline.push(await timed(() => runBare(channel)));
    }
    if (round === 0) continue;
    times.ours.push(median(ours));
    times.baseline.push(median(baseline));
    spent.push(after.map((ms, index) => (ms - (before[index] ?? 0)) / IN_A_ROW));
  }
  channel.close();
  await calls.remove(id);
  printComparison(
    `\`${COMMAND}\` in a running sandbox of ${memSizeMib} MiB, ${rounds} alternating rounds of ${IN_A_ROW}`,
    times,
    { ours: 'HTTP', baseline: 'bare guest channel' },
    { unit: 'ms', target: '≤ 0.7, and HTTP ≤ 25 ms' },
  );
  const rows = Object.keys(pids).map((name, index) => ({
    name,
    samples: spent.map((each) => each[index] ?? Number.NaN),
  }));
  printRows('processor time of one command', rows, 'ms');
}
