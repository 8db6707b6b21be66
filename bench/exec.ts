import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import type { ApiClient } from '../test/helpers/api.ts';
import { Stack } from '../test/helpers/stack.ts';
import { type BareRunc, contentsOf, prepareBareRunc } from './bare-runc.ts';
import { machineBusyMs, processorMs, residentMiB } from './process-usage.ts';
import { benchExecFloor } from './exec-floor.ts';
import { benchRead } from './read.ts';
import {
  alternate,
  median,
  printComparison,
  printFigures,
  printRows,
  timed,
} from './statistics.ts';
import { GiB } from '../shared/units.ts';

const ROUNDS = 120;
const CALLERS = 16;
const CALLS_PER_ROUND = 160;
const LOAD_ROUNDS = 4;
const GROWTH_FROM = 2000;
const GROWTH_TO = 20_000;

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

async function benchOneByOne(exec: Exec, bare: BareRunc): Promise<void> {
  await alternate(5, exec, () => bare.run());
  printComparison(
    `exec of \`true\`, back to back, ${ROUNDS} alternating rounds`,
    await alternate(ROUNDS, exec, () => bare.run()),
    { ours: 'HTTP exec', baseline: 'bare runc run' },
    { unit: 'ms', target: '≤ 1.3' },
  );
}

/**
 * Paces calls at two medians of the baseline, so that the pool can replace the container it gave.
 */
async function benchPaced(exec: Exec, bare: BareRunc): Promise<void> {
  const warmUp = await alternate(15, exec, () => bare.run());
  const paceMs = 2 * median(warmUp.baseline);
  const times = { ours: [] as number[], baseline: [] as number[] };
  for (let round = 0; round < ROUNDS; round += 1) {
    const tookMs = await timed(exec);
    times.ours.push(tookMs);
    await sleep(Math.max(0, paceMs - tookMs));
    times.baseline.push(await timed(() => bare.run()));
  }
  printComparison(
    `exec of \`true\`, one per ${paceMs.toFixed(0)} ms, ${ROUNDS} alternating rounds`,
    times,
    { ours: 'HTTP exec', baseline: 'bare runc run' },
    { unit: 'ms', target: '≤ 0.15' },
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

async function benchDrained(stack: Stack, exec: Exec, diskId: string): Promise<void> {
  const bares = await Promise.all(
    Array.from({ length: CALLERS }, (_, i) => prepareBareRunc(stack, diskId, `bare${i}`)),
  );
  const ours = Array.from({ length: CALLERS }, () => exec);
  const baseline = bares.map((bare) => () => bare.run());
  try {
    const rates = { ours: [] as number[], baseline: [] as number[] };
    const work = { ours: [] as number[], own: [] as number[], baseline: [] as number[] };
    for (let round = 0; round < LOAD_ROUNDS; round += 1) {
      const before = [await machineBusyMs(), await ownMs(stack)] as const;
      rates.ours.push(await throughput(ours, CALLS_PER_ROUND));
      const after = [await machineBusyMs(), await ownMs(stack)] as const;
      work.ours.push((after[0] - before[0]) / CALLS_PER_ROUND);
      work.own.push((after[1] - before[1]) / CALLS_PER_ROUND);
      rates.baseline.push(await throughput(baseline, CALLS_PER_ROUND));
      work.baseline.push(((await machineBusyMs()) - after[0]) / CALLS_PER_ROUND);
    }
    printComparison(
      `exec of \`true\`, ${CALLERS} callers, ${CALLS_PER_ROUND} calls a round, pool drained`,
      rates,
      { ours: 'HTTP exec', baseline: `${CALLERS} × bare runc run` },
      { unit: 'calls/s', target: '≥ 1.3' },
    );
    printWork(work);
  } finally {
    await Promise.all(bares.map((bare) => bare.dispose()));
  }
}

/** Processor time of the processes of Berth and of Redis, without what runs in containers. */
async function ownMs({ control, agent, redis }: Stack): Promise<number> {
  const each = await Promise.all([control, agent, redis].map(({ pid }) => processorMs(pid)));
  return each.reduce((sum, ms) => sum + ms, 0);
}

/** Why the rates are as they are: both are bound by the processors. */
function printWork(work: Readonly<Record<'ours' | 'own' | 'baseline', readonly number[]>>): void {
  const containers = work.ours.map((ms, round) => ms - (work.own[round] ?? 0));
  const rows = [
    { name: 'HTTP exec', samples: work.ours },
    { name: 'control, agent, Redis', samples: work.own },
    { name: 'runc, init, command, caller', samples: containers },
    { name: 'bare runc run', samples: work.baseline },
  ];
  printRows('processor time of the whole machine for each call', rows, 'ms');
  const free = median(work.baseline) / median(containers);
  process.stdout.write(`  if control, agent and Redis took none: ${free.toFixed(2)}\n\n`);
}

async function benchMemory(stack: Stack, exec: Exec): Promise<void> {
  const ours = Array.from({ length: CALLERS }, () => exec);
  const measure = async () => ({
    control: await residentMiB(stack.control.pid),
    agent: await residentMiB(stack.agent.pid),
  });
  await throughput(ours, GROWTH_FROM);
  const early = await measure();
  await throughput(ours, GROWTH_TO - GROWTH_FROM);
  const late = await measure();
  for (const [name, targetMiB] of [
    ['control', 120],
    ['agent', 150],
  ] as const) {
    printFigures(
      `resident memory of ${name}`,
      {
        [`after ${GROWTH_FROM} commands`]: early[name],
        [`after ${GROWTH_TO} commands`]: late[name],
      },
      { unit: 'MiB', target: `≤ ${targetMiB}, growth ≤ 3 %`, digits: 0 },
    );
  }
}

const PARTS = ['paced', 'floor', 'drained', 'memory', 'read'] as const;

/** `npm run bench -- exec [--only paced,floor,drained,memory,read]` */
export async function benchExec(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      only: { type: 'string', default: PARTS.join(',') },
    },
  });
  const only = new Set(values.only.split(','));
  const unknown = [...only].find((part) => !PARTS.some((known) => known === part));
  if (unknown !== undefined) throw new Error(`there is no part ${unknown}`);
  const stack = await Stack.start({ DISK_SIZE_BYTES: String(GiB) });
  try {
    const api = await stack.newClient();
    const { id } = await api.data<{ id: string }>('POST', '/api/disks', { name: 'bench' });
    const exec = plainExec(api, id);
    await exec(); // Attaches the disk, which the baseline uses too.
    if (only.has('paced') || only.has('floor')) await benchOneCaller(stack, exec, id, only);
    if (only.has('drained')) await benchDrained(stack, exec, id);
    if (only.has('memory')) await benchMemory(stack, exec);
    if (only.has('read')) await benchRead(stack, api, id);
  } finally {
    await stack.stop();
  }
}

async function benchOneCaller(
  stack: Stack,
  exec: Exec,
  diskId: string,
  only: ReadonlySet<string>,
): Promise<void> {
  const bare = await prepareBareRunc(stack, diskId, 'bare');
  try {
    if (only.has('paced')) {
      await benchPaced(exec, bare);
      await benchOneByOne(exec, bare);
    }
    if (only.has('floor')) await benchExecFloor(stack, contentsOf(stack, diskId), bare);
  } finally {
    await bare.dispose();
  }
}
