import assert from 'node:assert';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { sandboxSettings } from '../test/helpers/sandboxes.ts';
import { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { createOnce, type CreateTimes, newCreateTimes } from './create-once.ts';
import { SandboxCalls } from './sandbox-calls.ts';
import { printComparison, printRows } from './statistics.ts';

const TEMPLATE_MS_MAX = 120_000;
/** So that nothing of the sandbox before is still being removed. */
const REST_MS = 500;
/** The same while the host prewarms its next machine. */
const PREWARM_REST_MS = 3_000;

interface Flags {
  readonly rounds: number;
  readonly memSizeMib: number;
  readonly dirtyMib: number;
  readonly prewarmed: number;
  readonly runtime: string;
}

function readFlags(args: readonly string[]): Flags {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '20' },
      memory: { type: 'string', default: '512' },
      dirty: { type: 'string', default: '16' },
      prewarmed: { type: 'string', default: '0' },
      runtime: { type: 'string', default: 'microvm' },
    },
  });
  const number = (name: 'rounds' | 'memory' | 'dirty' | 'prewarmed', min: number): number => {
    const value = Number(values[name]);
    assert(Number.isInteger(value) && value >= min, `--${name}: a number from ${min} on`);
    return value;
  };
  const sizes = { memSizeMib: number('memory', 256), dirtyMib: number('dirty', 0) };
  const counts = { rounds: number('rounds', 1), prewarmed: number('prewarmed', 0) };
  return { ...sizes, ...counts, runtime: values.runtime };
}

/** Snapshots of a machine with some changed memory and files: running, and stopped. */
async function makeSnapshots(calls: SandboxCalls, { memSizeMib, dirtyMib }: Flags): Promise<void> {
  const id = await calls.createRunning(memSizeMib);
  const write = (path: string): string => `head -c ${dirtyMib}M /dev/urandom > ${path}`;
  await calls.output(id, `${write('/run/memory')}; ${write('/root/disk')}; sync`);
  await calls.snapshot(id, 'memory');
  await calls.stop(id);
  await calls.snapshot(id, 'disk');
}

async function measure(
  calls: SandboxCalls,
  { memSizeMib, prewarmed, rounds }: Flags,
): Promise<Record<string, CreateTimes>> {
  const kinds = { default: {}, disk: { snapshot: 'disk' }, memory: { snapshot: 'memory' } };
  const measured: Record<string, CreateTimes> = {};
  for (let round = 0; round <= rounds; round += 1) {
    for (const [kind, settings] of Object.entries(kinds)) {
      const times = (measured[kind] ??= newCreateTimes());
      await createOnce(calls, memSizeMib, settings, round === 0 ? undefined : times);
      await sleep(prewarmed > 0 ? PREWARM_REST_MS : REST_MS);
    }
  }
  return measured;
}

function print({ default: plain, ...others }: Record<string, CreateTimes>, flags: Flags): void {
  const { memSizeMib, dirtyMib, rounds, prewarmed } = flags;
  assert(plain !== undefined);
  const none = { ids: [], runningMs: [], outputMs: [] };
  for (const key of ['runningMs', 'outputMs'] as const) {
    const until = key === 'runningMs' ? 'running' : 'first output';
    for (const [kind, times = none] of Object.entries(others)) {
      const title =
        `create from a snapshot (${kind}, ${dirtyMib} MiB written) to ${until}, ${memSizeMib} MiB, ` +
        `${rounds} alternating rounds, ${prewarmed} prewarmed`;
      const names = { ours: `from the snapshot`, baseline: 'default image' };
      const options = { unit: 'ms', target: '≤ 1.25' };
      printComparison(title, { ours: times[key], baseline: plain[key] }, names, options);
    }
  }
}

/** Where the time of starts went on the host. */
async function printPhases(stack: Stack, measured: Record<string, CreateTimes>): Promise<void> {
  const lines = (await stack.agent.readLog()).split('\n');
  const found = lines.filter((line) => line.includes('"sandbox:started"') && line.endsWith('}'));
  const phases = new Map<string, number[]>();
  for (const line of found) {
    const { sandboxId, origin, timesMs } = JSON.parse(line) as {
      sandboxId: string;
      origin: string;
      timesMs: Record<string, number>;
    };
    const [kind] = Object.entries(measured).find(([, { ids }]) => ids.includes(sandboxId)) ?? [];
    for (const [phase, ms] of Object.entries(kind === undefined ? {} : timesMs)) {
      const name = `${kind}, ${origin}: ${phase}`;
      phases.set(name, [...(phases.get(name) ?? []), ms]);
    }
  }
  const rows = [...phases].map(([name, samples]) => ({ name, samples }));
  printRows('phases on the host', rows, 'ms');
}

/**
 * `npm run bench -- snapshot [--rounds N] [--memory MIB] [--dirty MIB] [--prewarmed N]
 * [--runtime microvm|container]`: see docs/benchmarks.md.
 */
export async function benchSnapshot(args: readonly string[]): Promise<void> {
  const flags = readFlags(args);
  if (flags.runtime === 'container') process.env['BERTH_TEST_RUNTIME'] = 'container';
  const stack = await Stack.start(
    { ...sandboxSettings(), SANDBOX_PREWARMED: String(flags.prewarmed) },
    [],
    true,
  );
  try {
    const calls = new SandboxCalls(await stack.newClient(), AbortSignal.timeout(3_600_000));
    const first = await calls.createRunning(flags.memSizeMib);
    if (flags.runtime !== 'container') {
      await waitFor(
        'the template',
        async () => (await stack.agent.readLog()).includes('"template:created"'),
        TEMPLATE_MS_MAX,
      );
    }
    await calls.remove(first);
    await makeSnapshots(calls, flags);
    const measured = await measure(calls, flags);
    print(measured, flags);
    await printPhases(stack, measured);
  } finally {
    await stack.stop();
  }
}
