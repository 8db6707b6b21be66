import assert from 'node:assert';
import { join } from 'node:path';
import { waitFor } from '../test/helpers/wait.ts';
import type { Stack } from '../test/helpers/stack.ts';
import type { BareQemu, BareTimes } from './bare-qemu.ts';
import { ending } from './ending.ts';
import type { SandboxCalls } from './sandbox-calls.ts';
import { inTurns } from './statistics.ts';

const TEMPLATE_MS_MAX = 120_000;
/** The host prewarms when nothing was requested for a shorter time than this. */
const REST_MS = 500;
const REST_MS_MAX = 180_000;

/** Shared parts of the sandbox benchmark. */
export interface SandboxBench {
  readonly stack: Stack;
  readonly calls: SandboxCalls;
  readonly bare: BareQemu;
  /** Memory of the sandboxes and of the bare machine beside them. */
  readonly memSizeMib: number;
  /** The root disk of the default image. */
  readonly rootDisk: string;
  readonly rounds: number;
  /** Whether machines boot from their kernel, because there are no templates. */
  readonly isCold: boolean;
  /** How many prewarmed VMs the host keeps at most. */
  readonly prewarmed: number;
  /** How many sandboxes to run at the same time, or to create one after the other. */
  readonly fleet: number;
  readonly burst: number;
}

type LogEvent = Readonly<Record<string, unknown>>;

/** The agent's log events with this name. */
export async function logEvents({ stack }: SandboxBench, name: string): Promise<LogEvent[]> {
  const lines = (await stack.agent.readLog()).split('\n');
  // The last line may be incomplete.
  const found = lines.filter((line) => line.includes(`"${name}"`) && line.endsWith('}'));
  return found.map((line) => JSON.parse(line) as LogEvent);
}

/** The name of a sandbox's machine on its host. The agent logs it just after it has answered. */
export function vmIdOf(bench: SandboxBench, id: string): Promise<string> {
  return waitFor('the log to tell of a start', async () => {
    const starts = await logEvents(bench, 'sandbox:started');
    const start = starts.findLast(({ sandboxId }) => sandboxId === id);
    return start === undefined ? undefined : String(start['vmId']);
  });
}

/** The directory in which the agent keeps a sandbox's files. */
export async function sandboxDirectory(bench: SandboxBench, id: string): Promise<string> {
  const dataDir = bench.stack.environment['AGENT_DATA_DIR'] ?? '';
  return join(dataDir, 'sandboxes', await vmIdOf(bench, id));
}

/**
 * Waits until the host has prewarmed all the machines that it will: none came for longer than one
 * takes.
 */
export async function untilRested(
  bench: SandboxBench,
  memSizeMib = bench.memSizeMib,
): Promise<void> {
  const { isCold, prewarmed } = bench;
  if (isCold || prewarmed === 0) return;
  const isRested = async (): Promise<boolean> => {
    ending.throwIfAborted();
    const made = await logEvents(bench, 'prewarmed:started');
    const started = await logEvents(bench, 'sandbox:started');
    const taken = new Set(started.map(({ vmId }) => vmId));
    const last = made.at(-1);
    const isQuiet =
      Date.now() - Date.parse(String(last?.['time'])) > 2 * Number(last?.['durationMs']) + REST_MS;
    const isThere = made.some(
      ({ vmId, memSizeMib: size }) => size === memSizeMib && !taken.has(vmId),
    );
    return isThere && isQuiet;
  };
  await waitFor('the host to rest', isRested, REST_MS_MAX);
}

/**
 * Creates a sandbox on an idle host and waits until it runs. It starts from a template unless cold.
 */
export async function newSandbox(bench: SandboxBench, settings: object = {}): Promise<string> {
  const id = await bench.calls.createRunning(bench.memSizeMib, settings);
  await vmIdOf(bench, id);
  await untilRested(bench);
  return id;
}

/** Makes the template of a shape: the first machine of the shape only begins to make it. */
export async function makeTemplate(bench: SandboxBench, memSizeMib: number): Promise<void> {
  const { calls, isCold } = bench;
  const id = await calls.createRunning(memSizeMib);
  await calls.remove(id);
  if (isCold) return;
  const isMade = async (): Promise<boolean> => {
    ending.throwIfAborted();
    const failures = await logEvents(bench, 'template:createFailed');
    assert.deepEqual(failures, [], 'the template was not made');
    const made = await logEvents(bench, 'template:created');
    return made.some((event) => event['memSizeMib'] === memSizeMib);
  };
  await waitFor('the template', isMade, TEMPLATE_MS_MAX);
}

/** Alternates rounds of `ours` with bare boots, after one unmeasured round of each. */
export const besideBoots = <T>(
  bench: SandboxBench,
  ours: () => Promise<T>,
): Promise<{ ours: T[]; boots: BareTimes[] }> =>
  inTurns(
    bench.rounds,
    {
      async ours() {
        const result = await ours();
        await untilRested(bench); // Prewarming must not slow the baseline down.
        return result;
      },
      boots: () => bench.bare.run(),
    },
    1,
  );
