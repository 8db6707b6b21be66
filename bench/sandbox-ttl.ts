import { setTimeout as sleep } from 'node:timers/promises';
import { newSandbox, type SandboxBench } from './sandbox-bench.ts';
import { printRows } from './statistics.ts';

const TTL_SECONDS = 60;
const SANDBOXES = 5;
/** Time between the sandboxes' limits, so that no pause waits for another one. */
const APART_MS = 1_000;
const LOOK_MS = 10;

/** Measures how long after its time limit a sandbox is paused with a durable checkpoint. */
export async function benchTtl(bench: SandboxBench): Promise<void> {
  const { calls, memSizeMib, signal } = bench;
  const measure = async (index: number): Promise<number> => {
    await sleep(index * APART_MS, undefined, { signal });
    const id = await newSandbox(bench, { max_ttl_seconds: TTL_SECONDS });
    const { running_at: runningAt } = await calls.get(id);
    const dueAt = Date.parse(runningAt ?? '') + TTL_SECONDS * 1000;
    await sleep(dueAt - Date.now() - APART_MS, undefined, { signal });
    let { status } = await calls.get(id);
    while (status !== 'paused') {
      await sleep(LOOK_MS, undefined, { signal });
      ({ status } = await calls.get(id));
    }
    const lateMs = Date.now() - dueAt;
    await calls.remove(id);
    return lateMs;
  };
  const samples = await Promise.all(
    Array.from({ length: SANDBOXES }, (_, index) => measure(index)),
  );
  const title = `from the end of max_ttl_seconds until it is paused, ${memSizeMib} MiB`;
  printRows(title, [{ name: `${SANDBOXES} sandboxes (≤ 1000)`, samples }], 'ms');
}
