import type { ApiClient } from '../test/helpers/api.ts';
import { diskContents } from '../test/helpers/host.ts';
import { Stack } from '../test/helpers/stack.ts';
import { type BareRunc, prepareRunc } from './bare-runc.ts';
import { readFlags } from './flags.ts';
import { machineBusyMs, processorMs, residentMiB } from './process-usage.ts';
import { benchExecFloor } from './exec-floor.ts';
import { benchRead } from './read.ts';
import {
  alternate,
  inTurns,
  median,
  printComparison,
  printFigures,
  printRows,
  paced,
  timed,
} from './statistics.ts';
import { GiB } from '../shared/units.ts';

const CALLERS = 16;
const CALLS_PER_ROUND = 160;
const LOAD_ROUNDS_MAX = 4;

type Exec = () => Promise<void>;

/** Calls the API without the checks of the tests' client. */
function plainExec(api: ApiClient, diskId: string): Exec {
  const url = `${api.baseUrl}/api/disks/${diskId}/exec`;
  const headers = { authorization: `Bearer ${api.key}`, 'content-type': 'application/json' };
  return async () => {
    const response = await fetch(url, { method: 'POST', headers, body: '{"command":"true"}' });
    const body = (await response.json()) as { success: boolean };
    if (!body.success) throw new Error(JSON.stringify(body));
  };
}

/**
 * Paces calls at two medians of the baseline, so that the pool can replace the container it gave;
 * then calls back to back.
 */
async function benchPaced(exec: Exec, bare: BareRunc, rounds: number): Promise<void> {
  const warmUp = await alternate(15, exec, () => bare.run());
  const paceMs = 2 * median(warmUp.baseline);
  const measurements = {
    ours: () => paced(exec, paceMs),
    baseline: () => timed(() => bare.run()),
  };
  const names = { ours: 'HTTP exec', baseline: 'bare runc run' };
  printComparison(
    `exec of \`true\`, one per ${paceMs.toFixed(0)} ms, ${rounds} alternating rounds`,
    await inTurns(rounds, measurements),
    names,
    { unit: 'ms', target: '≤ 0.15' },
  );
  printComparison(
    `exec of \`true\`, back to back, ${rounds} alternating rounds`,
    await alternate(rounds, exec, () => bare.run(), 5),
    names,
    { unit: 'ms', target: '≤ 1.3' },
  );
}

/** Calls per second while all `callers` call at the same time. */
async function throughput(callers: readonly Exec[], calls: number): Promise<number> {
  const begunAt = performance.now();
  let left = calls;
  await Promise.all(
    callers.map(async (call) => {
      while (left > 0) {
        left -= 1;
        await call();
      }
    }),
  );
  return (calls * 1000) / (performance.now() - begunAt);
}

async function benchDrained(
  stack: Stack,
  exec: Exec,
  prepare: (name: string) => Promise<BareRunc>,
  rounds: number,
): Promise<void> {
  await using runcs = new AsyncDisposableStack();
  const baseline: Exec[] = [];
  while (baseline.length < CALLERS) {
    const bare = runcs.use(await prepare(`bare${baseline.length}`));
    baseline.push(() => bare.run());
  }
  const load = async (callers: readonly Exec[]) => {
    const before = [await machineBusyMs(), await ownMs(stack)] as const;
    const rate = await throughput(callers, CALLS_PER_ROUND);
    const workMs = ((await machineBusyMs()) - before[0]) / CALLS_PER_ROUND;
    return { rate, workMs, ownMs: ((await ownMs(stack)) - before[1]) / CALLS_PER_ROUND };
  };
  const ours = Array.from({ length: CALLERS }, () => exec);
  const loads = await inTurns(rounds, { ours: () => load(ours), baseline: () => load(baseline) });
  const rates = {
    ours: loads.ours.map(({ rate }) => rate),
    baseline: loads.baseline.map(({ rate }) => rate),
  };
  printComparison(
    `exec of \`true\`, ${CALLERS} callers, ${CALLS_PER_ROUND} calls a round, pool drained`,
    rates,
    { ours: 'HTTP exec', baseline: `${CALLERS} × bare runc run` },
    { unit: 'calls/s', target: '≥ 1.3' },
  );
  // Why the rates are as they are: both are bound by the processors.
  const rows = [
    { name: 'HTTP exec', samples: loads.ours.map(({ workMs }) => workMs) },
    { name: 'control, agent, Redis', samples: loads.ours.map((each) => each.ownMs) },
    { name: 'bare runc run', samples: loads.baseline.map(({ workMs }) => workMs) },
  ];
  printRows('processor time of the whole machine for each call', rows, 'ms');
}

/** Processor time of the processes of Berth and of Redis, without what runs in containers. */
async function ownMs({ control, agent, redis }: Stack): Promise<number> {
  const each = await Promise.all([control, agent, redis].map(({ pid }) => processorMs(pid)));
  return each.reduce((sum, ms) => sum + ms, 0);
}

async function benchMemory(stack: Stack, exec: Exec, calls: number): Promise<void> {
  const ours = Array.from({ length: CALLERS }, () => exec);
  const early = Math.ceil(calls / 3);
  const measure = async () => ({
    control: await residentMiB(stack.control.pid),
    agent: await residentMiB(stack.agent.pid),
  });
  await throughput(ours, early);
  const before = await measure();
  await throughput(ours, calls - early);
  const after = await measure();
  for (const [name, targetMiB] of [
    ['control', 120],
    ['agent', 150],
  ] as const) {
    printFigures(
      `resident memory of ${name}`,
      {
        [`after ${early} commands`]: before[name],
        [`after ${calls} commands`]: after[name],
      },
      { unit: 'MiB', target: `≤ ${targetMiB}, growth ≤ 3 %`, digits: 0 },
    );
  }
}

/** `npm run bench -- exec`: see docs/benchmarks.md. */
export async function benchExec(args: readonly string[]): Promise<void> {
  const known = { rounds: 120, seconds: 3, calls: 6000 };
  const parts = ['paced', 'floor', 'drained', 'memory', 'read'] as const;
  const { rounds, seconds, calls, only } = readFlags(args, known, parts);
  await using stack = await Stack.start({ DISK_SIZE_BYTES: String(GiB) });
  const api = await stack.newClient();
  const { id } = await api.data<{ id: string }>('POST', '/api/disks', { name: 'bench' });
  const exec = plainExec(api, id);
  await exec(); // Attaches the disk, which the baseline uses too.
  const mountPath = diskContents(stack, id);
  const prepare = (name: string): Promise<BareRunc> =>
    prepareRunc(stack, { name, mountPath, command: 'true' });
  if (only.has('paced') || only.has('floor')) {
    await using bare = await prepare('bare');
    if (only.has('paced')) await benchPaced(exec, bare, rounds);
    if (only.has('floor')) await benchExecFloor(stack, mountPath, bare, Math.ceil(rounds / 2));
  }
  if (only.has('drained')) {
    await benchDrained(stack, exec, prepare, Math.min(rounds, LOAD_ROUNDS_MAX));
  }
  if (only.has('memory')) await benchMemory(stack, exec, calls);
  if (only.has('read')) await benchRead(stack, { api, diskId: id, seconds, rounds });
}
