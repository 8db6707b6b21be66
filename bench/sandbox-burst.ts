import { logEvents, makeTemplate, type SandboxBench, untilRested } from './sandbox-bench.ts';
import type { Start } from './sandbox-calls.ts';
import { printRows } from './statistics.ts';

const MEM_SIZE_MIB = 256;

interface Burst {
  readonly starts: readonly Start[];
  /** Until the last one's output. */
  readonly seconds: number;
  readonly prewarmed: number;
}

async function startAll(bench: SandboxBench): Promise<Burst> {
  const { calls, burst } = bench;
  await untilRested(bench, MEM_SIZE_MIB);
  const beganAt = performance.now();
  const starts = await Promise.all(Array.from({ length: burst }, () => calls.start(MEM_SIZE_MIB)));
  const seconds = (performance.now() - beganAt) / 1000;
  const prewarmed = await countPrewarmed(bench, starts);
  await Promise.all(starts.map(({ id }) => calls.remove(id)));
  return { starts, seconds, prewarmed };
}

async function countPrewarmed(bench: SandboxBench, starts: readonly Start[]): Promise<number> {
  const ids = new Set<unknown>(starts.map(({ id }) => id));
  const started = await logEvents(bench, 'sandbox:started');
  return started.filter(({ sandboxId, origin }) => ids.has(sandboxId) && origin === 'prewarmed')
    .length;
}

/**
 * Compares many creations at once with as many one after the other; once more after that, for which
 * the host has prewarmed as many as it may.
 */
export async function benchBurst(bench: SandboxBench): Promise<void> {
  const { calls, burst } = bench;
  await makeTemplate(bench, MEM_SIZE_MIB);
  const first = await startAll(bench);
  const again = await startAll(bench);
  const inTurn: Start[] = [];
  for (let count = 0; count < burst; count += 1) {
    inTurn.push(await calls.startOnce(MEM_SIZE_MIB));
  }
  const bursts = { 'at once': first, 'at once again': again };
  printRows(
    `${burst} creates of ${MEM_SIZE_MIB} MiB to their first output (target: all in ≤ 6 s)`,
    Object.entries(bursts).map(([name, { seconds, prewarmed }]) => ({
      name: `${name}, ${prewarmed} prewarmed`,
      samples: [seconds],
    })),
    's',
  );
  const each = { 'at once': first.starts, 'at once again': again.starts, 'in turn': inTurn };
  const rows = Object.entries(each).map(([name, starts]) => ({
    name,
    samples: starts.map(({ outputMs }) => outputMs),
  }));
  printRows('each of them', rows, 'ms');
}
