import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { ending } from './ending.ts';
import { besideBoots, newSandbox, type SandboxBench, sandboxDirectory } from './sandbox-bench.ts';
import { median, printComparison, printRows, timed } from './statistics.ts';

const TICK_MS = 5;
const LOOK_MS = 1;
const QUIET_MS = 1_000;

/**
 * A process in the guest that keeps writing bytes to the console, which the host sees in a file.
 * The gap is measured on the host because the guest's own clocks stop during it.
 */
const TICKER =
  `setsid perl -e 'open(my $c, ">", "/dev/console") or die; ` +
  `while (1) { syswrite($c, "."); select(undef, undef, undef, ${TICK_MS / 1000}) }' ` +
  `> /dev/null 2>&1 &`;

/** The longest time without a tick while `run` is under way. */
async function longestGap(console: string, run: () => Promise<void>): Promise<number> {
  const over = new AbortController();
  const watching = watchGaps(console, over.signal);
  try {
    await run();
  } finally {
    over.abort();
  }
  return watching;
}

async function watchGaps(console: string, over: AbortSignal): Promise<number> {
  let { size } = await stat(console);
  let [tickedAt, longestMs] = [performance.now(), 0];
  while (!over.aborted) {
    await sleep(LOOK_MS);
    const now = await stat(console);
    const at = performance.now();
    longestMs = Math.max(longestMs, at - tickedAt);
    if (now.size === size) continue;
    size = now.size;
    tickedAt = at;
  }
  return longestMs;
}

interface Fork {
  readonly quietMs: number;
  readonly gapMs: number;
  readonly childMs: number;
}

async function forkOnce(bench: SandboxBench): Promise<Fork> {
  const { calls } = bench;
  const parent = await newSandbox(bench);
  await calls.output(parent, TICKER);
  const console = join(await sandboxDirectory(bench, parent), 'run/console.log');
  await sleep(QUIET_MS, undefined, { signal: ending });
  const quietMs = await longestGap(console, () => sleep(QUIET_MS, undefined, { signal: ending }));
  let child = '';
  let childMs = 0;
  const gapMs = await longestGap(console, async () => {
    childMs = await timed(async () => {
      child = await calls.fork(parent);
    });
    await sleep(QUIET_MS / 2, undefined, { signal: ending });
  });
  await calls.remove(child);
  await calls.remove(parent);
  return { quietMs, gapMs, childMs };
}

/** Measures for how long a fork stops its running source, beside cold boots. */
export async function benchFork(bench: SandboxBench): Promise<void> {
  const { memSizeMib, rounds } = bench;
  const { ours, boots } = await besideBoots(bench, () => forkOnce(bench));
  printComparison(
    `longest gap between two ticks of a source while it is forked, ${memSizeMib} MiB, ` +
      `${rounds} alternating rounds; a tick each ${TICK_MS} ms`,
    { ours: ours.map(({ gapMs }) => gapMs), baseline: boots.map(({ runningMs }) => runningMs) },
    { ours: 'HTTP', baseline: 'bare QEMU, cold boot' },
    { unit: 'ms', target: '≤ 0.05' },
  );
  const quiet = median(ours.map(({ quietMs }) => quietMs)).toFixed(1);
  const rows = [{ name: 'fork to running', samples: ours.map(({ childMs }) => childMs) }];
  printRows(`the copies; without a fork the longest gap was ${quiet} ms`, rows, 'ms');
}
