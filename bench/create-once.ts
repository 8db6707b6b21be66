import assert from 'node:assert';
import type { SandboxCalls } from './sandbox-calls.ts';

/** Milliseconds of each create, in the order of the creates. */
export interface CreateTimes {
  readonly ids: string[];
  readonly runningMs: number[];
  readonly outputMs: number[];
}

export const newCreateTimes = (): CreateTimes => ({ ids: [], runningMs: [], outputMs: [] });

/**
 * Creates a sandbox, from the request to the answer that it runs, and to the output of a first
 * command; then removes it.
 * @param times undefined: not measured
 */
export async function createOnce(
  calls: SandboxCalls,
  memSizeMib: number,
  settings: object,
  times: CreateTimes | undefined,
): Promise<void> {
  const beganAt = performance.now();
  const id = await calls.createRunning(memSizeMib, settings);
  const runningMs = performance.now() - beganAt;
  assert.equal(await calls.output(id, 'echo ready'), 'ready\n');
  times?.ids.push(id);
  times?.runningMs.push(runningMs);
  times?.outputMs.push(performance.now() - beganAt);
  await calls.remove(id);
}
