import { besideBoots, type SandboxBench } from './sandbox-bench.ts';
import { printComparison } from './statistics.ts';

const COLD_TARGETS = { runningMs: '≤ 1.15', outputMs: '≤ 1.15' } as const;
const TARGETS = { runningMs: '≤ 0.06', outputMs: '≤ 0.14; prewarmed ≤ 45 ms' } as const;

/** Create to running, and to the first command's output, beside cold boots. */
export async function benchStart(bench: SandboxBench): Promise<void> {
  const { calls, memSizeMib, rounds, isCold, prewarmed } = bench;
  const { ours, boots } = await besideBoots(bench, () => calls.startOnce(memSizeMib));
  const targets = isCold ? COLD_TARGETS : TARGETS;
  const ahead = prewarmed > 0 ? 'HTTP' : 'HTTP, nothing prewarmed';
  const names = { ours: isCold ? 'HTTP, no templates' : ahead, baseline: 'bare QEMU, cold boot' };
  for (const [title, key, until] of [
    ['create to running', 'runningMs', 'to the guest agent’s welcome'],
    ['create to first output', 'outputMs', 'to the output of `echo`'],
  ] as const) {
    printComparison(
      `${title}, ${memSizeMib} MiB, ${rounds} alternating rounds; bare: ${until}`,
      { ours: ours.map((each) => each[key]), baseline: boots.map((each) => each[key]) },
      names,
      { unit: 'ms', target: targets[key] },
    );
  }
}
