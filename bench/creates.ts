import { setTimeout as sleep } from 'node:timers/promises';
import type { Environment } from '../test/helpers/daemon.ts';
import { containerSettings, sandboxSettings } from '../test/helpers/sandboxes.ts';
import type { SandboxCalls, Start } from './sandbox-calls.ts';
import { inTurns, printComparison } from './statistics.ts';

/** Pause between creations, until the previous sandbox is removed and its successor prewarmed. */
const REST_MS = { plain: 500, prewarmed: 3_000 } as const;

/** Settings of a stack with one of the runtimes, and so many prewarmed sandboxes. */
export const runtimeSettings = (runtime: string, prewarmed: number): Environment => ({
  ...(runtime === 'container' ? containerSettings() : sandboxSettings()),
  SANDBOX_PREWARMED: String(prewarmed),
});

/** Creates sandboxes with each of the settings in turns, beside those of the default image. */
export async function compareCreates(
  calls: SandboxCalls,
  flags: { readonly rounds: number; readonly memory: number; readonly prewarmed: number },
  kinds: Readonly<Record<string, object>>,
): Promise<void> {
  const { rounds, memory, prewarmed } = flags;
  const create = (settings: object) => async (): Promise<Start> => {
    const start = await calls.startOnce(memory, settings);
    await sleep(prewarmed > 0 ? REST_MS.prewarmed : REST_MS.plain);
    return start;
  };
  const all = Object.entries({ ...kinds, default: {} });
  const measurements = Object.fromEntries(all.map(([name, each]) => [name, create(each)]));
  // The first round fills caches and templates.
  const { default: plain = [], ...others } = await inTurns(rounds, measurements, 1);
  for (const [kind, starts] of Object.entries(others)) {
    for (const [key, until] of [
      ['runningMs', 'running'],
      ['outputMs', 'first output'],
    ] as const) {
      printComparison(
        `create from ${kind} to ${until}, ${memory} MiB, ${rounds} alternating rounds, ${prewarmed} prewarmed`,
        { ours: starts.map((each) => each[key]), baseline: plain.map((each) => each[key]) },
        { ours: kind, baseline: 'default image' },
        { unit: 'ms', target: '≤ 1.25' },
      );
    }
  }
}
