import assert from 'node:assert';
import { makeTemplate, type SandboxBench } from './sandbox-bench.ts';
import { printPhases, readPhases } from './sandbox-phases.ts';
import { printRows } from './statistics.ts';

const MEM_SIZE_MIB = 256;

interface Start {
  readonly id: string;
  readonly runningMs: number;
  readonly outputMs: number;
}

async function startOne({ calls }: SandboxBench): Promise<Start> {
  const beganAt = performance.now();
  const id = await calls.createRunning(MEM_SIZE_MIB);
  const runningMs = performance.now() - beganAt;
  assert.equal(await calls.output(id, 'echo ready'), 'ready\n');
  return { id, runningMs, outputMs: performance.now() - beganAt };
}

/** Compares many creations at once with as many one after the other. */
export async function benchBurst(bench: SandboxBench): Promise<void> {
  const { calls, burst } = bench;
  await makeTemplate(bench, MEM_SIZE_MIB);
  const inTurn: Start[] = [];
  for (let count = 0; count < burst; count += 1) {
    const start = await startOne(bench);
    inTurn.push(start);
    await calls.remove(start.id);
  }
  const beganAt = performance.now();
  const atOnce = await Promise.all(Array.from({ length: burst }, () => startOne(bench)));
  const seconds = ((performance.now() - beganAt) / 1000).toFixed(1);
  await Promise.all(atOnce.map(({ id }) => calls.remove(id)));
  const rows = [
    { name: `${burst} one after the other`, samples: inTurn.map(({ outputMs }) => outputMs) },
    { name: `${burst} at once`, samples: atOnce.map(({ outputMs }) => outputMs) },
  ];
  printRows(
    `create to first output, ${MEM_SIZE_MIB} MiB; at once: all in ${seconds} s`,
    rows,
    'ms',
  );
  printPhases('one after the other, by phase', await readPhases(bench, inTurn));
  printPhases('at once, by phase', await readPhases(bench, atOnce));
}
