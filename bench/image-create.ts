import assert from 'node:assert';
import { setTimeout as sleep } from 'node:timers/promises';
import type { SandboxCalls } from './sandbox-calls.ts';
import { printComparison } from './statistics.ts';

/** So that nothing of the sandbox before is still being removed, or prewarmed after it. */
const REST_MS = { plain: 500, prewarmed: 3_000 } as const;
const TARGET = '≤ 1.25';

export interface CreateFlags {
  readonly rounds: number;
  readonly memSizeMib: number;
  readonly prewarmed: number;
}

interface Times {
  readonly runningMs: number[];
  readonly outputMs: number[];
}

/** From the request to the answer that it runs, and to the output of a first command. */
async function createOnce(
  calls: SandboxCalls,
  { memSizeMib, prewarmed }: CreateFlags,
  settings: object,
  times: Times | undefined,
): Promise<void> {
  const beganAt = performance.now();
  const id = await calls.createRunning(memSizeMib, settings);
  const runningMs = performance.now() - beganAt;
  assert.equal(await calls.output(id, 'echo ready'), 'ready\n');
  times?.runningMs.push(runningMs);
  times?.outputMs.push(performance.now() - beganAt);
  await calls.remove(id);
  await sleep(prewarmed > 0 ? REST_MS.prewarmed : REST_MS.plain);
}

/** Another sandbox from an image that was built, beside one from the default image. */
export async function benchImageCreate(
  calls: SandboxCalls,
  imageId: string,
  flags: CreateFlags,
): Promise<void> {
  const ours: Times = { runningMs: [], outputMs: [] };
  const baseline: Times = { runningMs: [], outputMs: [] };
  for (let round = 0; round <= flags.rounds; round += 1) {
    const isMeasured = round > 0; // The first one fills caches and templates.
    const settings = { image_id: imageId };
    await createOnce(calls, flags, settings, isMeasured ? ours : undefined);
    await createOnce(calls, flags, {}, isMeasured ? baseline : undefined);
  }
  for (const key of ['runningMs', 'outputMs'] as const) {
    const until = key === 'runningMs' ? 'running' : 'first output';
    const title =
      `another sandbox from a built image, create to ${until}, ${flags.memSizeMib} MiB, ` +
      `${flags.rounds} alternating rounds, ${flags.prewarmed} prewarmed`;
    const names = { ours: 'built image', baseline: 'default image' };
    const options = { unit: 'ms', target: TARGET };
    printComparison(title, { ours: ours[key], baseline: baseline[key] }, names, options);
  }
}
