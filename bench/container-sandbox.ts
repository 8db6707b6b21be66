import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { prepareRunc } from './bare-runc.ts';
import { readFlags } from './flags.ts';
import { SandboxCalls } from './sandbox-calls.ts';
import { inTurns, printComparison, printRows, timed } from './statistics.ts';

const MEM_SIZE_MIB = 512;
/** Before a baseline, so that nothing of the round before is still being cleared away. */
const REST_MS = 300;

const countEvents = async (stack: Stack, name: string): Promise<number> =>
  (await stack.agent.readLog()).split(`"msg":"${name}"`).length - 1;

/** Waits until the host has prewarmed as many as were taken, and one more. */
async function untilRested(stack: Stack, prewarmed: number): Promise<void> {
  if (prewarmed > 0) {
    await waitFor('the host to prewarm', async () => {
      const starts = await countEvents(stack, 'sandbox:started');
      return starts > 0 && (await countEvents(stack, 'prewarmed:started')) >= starts;
    });
  }
  await sleep(REST_MS);
}

/** `npm run bench -- container-sandbox`: see docs/benchmarks.md. */
export async function benchContainerSandbox(args: readonly string[]): Promise<void> {
  const known = { rounds: 20, prewarmed: 2 };
  const { rounds, prewarmed, only } = readFlags(args, known, ['create', 'actions']);
  const settings = { SANDBOX_RUNTIME: 'container', SANDBOX_PREWARMED: String(prewarmed) };
  await using stack = await Stack.start(settings);
  const mountPath = join(stack.directory, 'empty');
  await mkdir(mountPath);
  await using bare = await prepareRunc(stack, { name: 'bare', mountPath, command: 'echo ready' });
  const calls = new SandboxCalls(await stack.newClient());
  if (only.has('create')) {
    const measurements = {
      async ours() {
        const { outputMs } = await calls.startOnce(MEM_SIZE_MIB);
        await untilRested(stack, prewarmed);
        return outputMs;
      },
      baseline: () => bare.firstOutputMs(),
    };
    const times = await inTurns(rounds, measurements, 1); // Before that, nothing is prewarmed.
    const ours = prewarmed > 0 ? 'HTTP, prewarmed' : 'HTTP, nothing prewarmed';
    const title = `create to first output, ${rounds} alternating rounds`;
    const names = { ours, baseline: 'runc run to first output' };
    printComparison(title, times, names, { unit: 'ms', target: '≤ 1.20' });
  }
  if (!only.has('actions')) return;
  const id = await calls.createRunning(MEM_SIZE_MIB);
  await calls.output(id, 'head -c 64M /dev/urandom > /root/data; sync');
  const times = await inTurns(rounds, {
    pause: () => timed(() => calls.pause(id)),
    resume: () => timed(() => calls.resume(id)),
    async fork() {
      let child = '';
      const ms = await timed(async () => {
        child = await calls.fork(id);
      });
      await calls.remove(child);
      await sleep(REST_MS);
      return ms;
    },
    'runc run to first output': () => bare.firstOutputMs(),
  });
  await calls.remove(id);
  const rows = Object.entries(times).map(([name, samples]) => ({ name, samples }));
  printRows(`pause, resume, fork of 64 MiB, ${rounds} rounds`, rows, 'ms');
}
