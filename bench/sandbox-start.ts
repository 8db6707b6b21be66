import assert from 'node:assert';
import type { BareTimes } from './bare-qemu.ts';
import { besideBoots, type SandboxBench } from './sandbox-bench.ts';
import { printComparison } from './statistics.ts';

const COLD_TARGETS = { runningMs: '≤ 1.15', outputMs: '≤ 1.15' } as const;
const TARGETS = { runningMs: '≤ 0.06', outputMs: '≤ 0.14; prewarmed ≤ 45 ms' } as const;

interface Start extends BareTimes {
  readonly id: string;
}

/** From the request for a sandbox to the answers, over the HTTP API. */
async function startOnce(bench: SandboxBench): Promise<Start> {
  const beganAt = performance.now();
  const id = await bench.calls.createRunning(bench.memSizeMib);
  const runningMs = performance.now() - beganAt;
  assert.equal(await bench.calls.output(id, 'echo ready'), 'ready\n');
  const outputMs = performance.now() - beganAt;
  await bench.calls.remove(id);
  return { id, runningMs, outputMs };
}

/** Create to running, and to the first command's output, beside cold boots. */
export async function benchStart(bench: SandboxBench): Promise<void> {
  const { memSizeMib, rounds, isCold, prewarmed } = bench;
  const { ours, boots } = await besideBoots(bench, () => startOnce(bench));
  const targets = isCold ? COLD_TARGETS : TARGETS;
  const ahead = prewarmed > 0 ? 'HTTP' : 'HTTP, nothing prewarmed';
  const names = { ours: isCold ? 'HTTP, no templates' : ahead, baseline: 'bare QEMU, cold boot' };
  const rows = [
    { title: 'create to running', key: 'runningMs', until: 'to the guest agent’s welcome' },
    { title: 'create to first output', key: 'outputMs', until: 'to the output of `echo`' },
  ] as const;
  for (const { title, key, until } of rows) {
    const of = (times: readonly BareTimes[]): number[] => times.map((each) => each[key]);
    const heading = `${title}, ${memSizeMib} MiB, ${rounds} alternating rounds; bare: ${until}`;
    const options = { unit: 'ms', target: targets[key] };
    printComparison(heading, { ours: of(ours), baseline: of(boots) }, names, options);
  }
}
