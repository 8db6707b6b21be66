import { setTimeout as sleep } from 'node:timers/promises';
import { createOnce, newCreateTimes } from './create-once.ts';
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

/** Another sandbox from an image that was built, beside one from the default image. */
export async function benchImageCreate(
  calls: SandboxCalls,
  imageId: string,
  flags: CreateFlags,
): Promise<void> {
  const { memSizeMib, prewarmed } = flags;
  const [ours, baseline] = [newCreateTimes(), newCreateTimes()];
  const restMs = prewarmed > 0 ? REST_MS.prewarmed : REST_MS.plain;
  for (let round = 0; round <= flags.rounds; round += 1) {
    const isMeasured = round > 0; // The first one fills caches and templates.
    await createOnce(calls, memSizeMib, { image_id: imageId }, isMeasured ? ours : undefined);
    await sleep(restMs);
    await createOnce(calls, memSizeMib, {}, isMeasured ? baseline : undefined);
    await sleep(restMs);
  }
  for (const key of ['runningMs', 'outputMs'] as const) {
    const until = key === 'runningMs' ? 'running' : 'first output';
    const title =
      `another sandbox from a built image, create to ${until}, ${memSizeMib} MiB, ` +
      `${flags.rounds} alternating rounds, ${prewarmed} prewarmed`;
    const names = { ours: 'built image', baseline: 'default image' };
    const options = { unit: 'ms', target: TARGET };
    printComparison(title, { ours: ours[key], baseline: baseline[key] }, names, options);
  }
}
