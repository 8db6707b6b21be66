import { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { compareCreates, runtimeSettings } from './creates.ts';
import { readFlags } from './flags.ts';
import { SandboxCalls } from './sandbox-calls.ts';

const TEMPLATE_MS_MAX = 120_000;

/** `npm run bench -- snapshot`: see docs/benchmarks.md. */
export async function benchSnapshot(args: readonly string[]): Promise<void> {
  const { runtime, dirty, ...flags } = readFlags(args, {
    ...{ rounds: 20, memory: 512, dirty: 16, prewarmed: 0 },
    runtime: ['microvm', 'container'],
  });
  await using stack = await Stack.start(runtimeSettings(runtime, flags.prewarmed));
  const calls = new SandboxCalls(await stack.newClient());
  await calls.startOnce(flags.memory);
  if (runtime === 'microvm') {
    await waitFor(
      'the template',
      async () => (await stack.agent.readLog()).includes('"template:created"'),
      TEMPLATE_MS_MAX,
    );
  }
  const source = await calls.createRunning(flags.memory);
  const write = (path: string): string => `head -c ${dirty}M /dev/urandom > ${path}`;
  await calls.output(source, `${write('/run/memory')}; ${write('/root/disk')}; sync`);
  const kinds: Record<string, object> = {};
  if (runtime === 'microvm') {
    await calls.snapshot(source, 'memory');
    kinds['a snapshot with memory'] = { snapshot: 'memory' };
  }
  await calls.stop(source);
  await calls.snapshot(source, 'disk');
  kinds['a snapshot of the disk'] = { snapshot: 'disk' };
  await compareCreates(calls, flags, kinds);
}
