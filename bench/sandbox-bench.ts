import assert from 'node:assert';
import { join } from 'node:path';
import { waitFor } from '../test/helpers/wait.ts';
import type { Stack } from '../test/helpers/stack.ts';
import type { BareQemu, BareTimes } from './bare-qemu.ts';
import type { SandboxCalls } from './sandbox-calls.ts';

const TEMPLATE_MS_MAX = 120_000;

/** What the parts of the sandbox bench have in common. */
export interface SandboxBench {
  readonly stack: Stack;
  readonly calls: SandboxCalls;
  readonly bare: BareQemu;
  /** Of the sandboxes that stand beside the bare machine. */
  readonly memSizeMib: number;
  readonly rounds: number;
  /** Machines boot: there are no templates. */
  readonly isCold: boolean;
  /** How many at once, or in a row. */
  readonly fleet: number;
  readonly burst: number;
  readonly signal: AbortSignal;
}

/** Where the agent keeps what belongs to a sandbox. */
export const sandboxDirectory = ({ stack }: SandboxBench, id: string): string =>
  join(stack.environment['AGENT_DATA_DIR'] ?? '', 'sandboxes', id);

type LogEvent = Readonly<Record<string, unknown>>;

/** The agent's log events of a name. */
export async function logEvents({ stack }: SandboxBench, name: string): Promise<LogEvent[]> {
  const lines = (await stack.agent.readLog()).split('\n');
  // The last line may not be whole yet.
  const found = lines.filter((line) => line.includes(`"${name}"`) && line.endsWith('}'));
  return found.map((line) => JSON.parse(line) as LogEvent);
}

/** One that is new and runs, begun from a template but in a cold bench. */
export function newSandbox(bench: SandboxBench): Promise<string> {
  return bench.calls.createRunning(bench.memSizeMib);
}

/** Has the template of a shape made, which the first machine of it only begins. */
export async function makeTemplate(bench: SandboxBench, memSizeMib: number): Promise<void> {
  const { calls, signal, isCold } = bench;
  const id = await calls.createRunning(memSizeMib);
  await calls.remove(id);
  if (isCold) return;
  const isMade = async (): Promise<boolean> => {
    signal.throwIfAborted();
    const failures = await logEvents(bench, 'template:notMade');
    assert.deepEqual(failures, [], 'the template was not made');
    const made = await logEvents(bench, 'template:made');
    return made.some((event) => event['memSizeMib'] === memSizeMib);
  };
  await waitFor('the template', isMade, TEMPLATE_MS_MAX);
}

/** Each round of ours in turn with one bare boot; one more round of each goes before, unmeasured. */
export async function besideBoots<T>(
  { bare, rounds, signal }: SandboxBench,
  ours: () => Promise<T>,
): Promise<{ ours: T[]; boots: BareTimes[] }> {
  const results: { ours: T[]; boots: BareTimes[] } = { ours: [], boots: [] };
  for (let round = 0; round <= rounds; round += 1) {
    const result = await ours();
    const boot = await bare.run(signal);
    if (round === 0) continue;
    results.ours.push(result);
    results.boots.push(boot);
  }
  return results;
}
