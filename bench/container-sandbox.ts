import assert from 'node:assert';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { type BareRunc, prepareRunc } from './bare-runc.ts';
import { SandboxCalls } from './sandbox-calls.ts';
import { printComparison, printRows, timed } from './statistics.ts';

const MEM_SIZE_MIB = 512;
const TARGET = '≤ 1.20';
/** Before a baseline, so that nothing of the round before is still being cleared away. */
const REST_MS = 300;

interface Bench {
  readonly stack: Stack;
  readonly calls: SandboxCalls;
  readonly bare: BareRunc;
  readonly rounds: number;
  readonly prewarmed: number;
}

const countEvents = async ({ stack }: Bench, name: string): Promise<number> =>
  (await stack.agent.readLog()).split(`"msg":"${name}"`).length - 1;

/** Waits until the host has prewarmed as many as were taken, and one more. */
async function untilRested(bench: Bench): Promise<void> {
  if (bench.prewarmed > 0) {
    await waitFor('the host to prewarm', async () => {
      const starts = await countEvents(bench, 'sandbox:started');
      return starts > 0 && (await countEvents(bench, 'prewarmed:started')) >= starts;
    });
  }
  await sleep(REST_MS);
}

async function createOnce({ calls }: Bench): Promise<{ ms: number; id: string }> {
  const begunAt = performance.now();
  const id = await calls.createRunning(MEM_SIZE_MIB);
  assert.equal(await calls.output(id, 'echo ready'), 'ready\n');
  return { ms: performance.now() - begunAt, id };
}

async function benchCreate(bench: Bench): Promise<void> {
  const times = { ours: [] as number[], baseline: [] as number[] };
  for (let round = 0; round <= bench.rounds; round += 1) {
    const { ms, id } = await createOnce(bench);
    await bench.calls.remove(id);
    await untilRested(bench);
    const bareMs = await bench.bare.firstOutputMs();
    if (round === 0) continue; // Unmeasured: nothing is prewarmed, no cache is filled.
    times.ours.push(ms);
    times.baseline.push(bareMs);
  }
  const ours = bench.prewarmed > 0 ? 'HTTP, prewarmed' : 'HTTP, nothing prewarmed';
  const title = `create to first output, ${bench.rounds} alternating rounds`;
  const names = { ours, baseline: 'runc run to first output' };
  printComparison(title, times, names, { unit: 'ms', target: TARGET });
}

async function benchActions({ calls, bare, rounds }: Bench): Promise<void> {
  const id = await calls.createRunning(MEM_SIZE_MIB);
  await calls.output(id, 'head -c 64M /dev/urandom > /root/data; sync');
  const times = { pause: [] as number[], resume: [] as number[], fork: [] as number[] };
  const baseline: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    times.pause.push(await timed(() => calls.pause(id)));
    times.resume.push(await timed(() => calls.resume(id)));
    const begunAt = performance.now();
    const child = await calls.fork(id);
    times.fork.push(performance.now() - begunAt);
    await calls.remove(child);
    await sleep(REST_MS);
    baseline.push(await bare.firstOutputMs());
  }
  await calls.remove(id);
  const rows = [
    ...Object.entries(times).map(([name, samples]) => ({ name, samples })),
    { name: 'runc run to first output', samples: baseline },
  ];
  printRows(`pause, resume, fork of 64 MiB, ${rounds} rounds`, rows, 'ms');
}

/** `npm run bench -- container-sandbox [--rounds N] [--prewarmed N]`: see docs/benchmarks.md. */
export async function benchContainerSandbox(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '20' },
      prewarmed: { type: 'string', default: '2' },
    },
  });
  const [rounds, prewarmed] = [Number(values.rounds), Number(values.prewarmed)];
  assert(Number.isInteger(rounds) && rounds > 0, '--rounds: a number from 1 on');
  const settings = { SANDBOX_RUNTIME: 'container', SANDBOX_PREWARMED: String(prewarmed) };
  const stack = await Stack.start(settings, [], true);
  try {
    const mountPath = join(stack.directory, 'empty');
    await mkdir(mountPath);
    const bare = await prepareRunc(stack, { name: 'bare', mountPath, command: 'echo ready' });
    const calls = new SandboxCalls(await stack.newClient(), new AbortController().signal);
    const bench = { stack, calls, bare, rounds, prewarmed };
    try {
      await benchCreate(bench);
      await benchActions(bench);
    } finally {
      await bare.dispose();
    }
  } finally {
    await stack.stop();
  }
}
