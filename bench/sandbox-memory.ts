import assert from 'node:assert';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { ending } from './ending.ts';
import { newSandbox, type SandboxBench, vmIdOf } from './sandbox-bench.ts';
import { median, printFigures } from './statistics.ts';

/** Time for a start's dirty pages to be written and its buffers to be released. */
const SETTLE_MS = 1_000;

/** A process's proportional set size (PSS): shared pages count in part. Zero when it has ended. */
async function shareMiB(pid: string): Promise<number> {
  const rollup = await readFile(join('/proc', pid, 'smaps_rollup'), 'utf8').catch(() => '');
  return Number(/^Pss:\s+(\d+) kB$/mu.exec(rollup)?.[1] ?? 0) / 1024;
}

/** Memory of each running machine; its processes are found by the ids in their arguments. */
async function machinesMiB(ids: readonly string[]): Promise<number[]> {
  const totals = new Map(ids.map((id) => [id, 0]));
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/u.test(pid)) continue;
    const args = await readFile(join('/proc', pid, 'cmdline'), 'latin1').catch(() => '');
    const id = args.includes('qemu-system') ? ids.find((each) => args.includes(each)) : undefined;
    if (id !== undefined) totals.set(id, (totals.get(id) ?? 0) + (await shareMiB(pid)));
  }
  return [...totals.values()];
}

async function availableMiB(): Promise<number> {
  const text = await readFile('/proc/meminfo', 'utf8');
  return Number(/^MemAvailable:\s+(\d+) kB$/mu.exec(text)?.[1]) / 1024;
}

/** The slope of the least-squares line through the values at 0, 1, 2 … */
function slope(values: readonly number[]): number {
  const middle = (values.length - 1) / 2;
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  let [product, square] = [0, 0];
  for (const [index, value] of values.entries()) {
    product += (index - middle) * (value - mean);
    square += (index - middle) ** 2;
  }
  return product / square;
}

/** Measures how much of the host's memory each further idle sandbox takes. */
export async function benchMemory(bench: SandboxBench): Promise<void> {
  const { calls, fleet, memSizeMib, stack } = bench;
  const ids: string[] = [];
  const vmIds: string[] = [];
  const available: number[] = [];
  for (let count = 0; count < fleet; count += 1) {
    const id = await newSandbox(bench);
    assert.equal(await calls.output(id, 'echo ready'), 'ready\n');
    ids.push(id);
    vmIds.push(await vmIdOf(bench, id));
    await sleep(SETTLE_MS, undefined, { signal: ending });
    available.push(await availableMiB());
  }
  const machines = await machinesMiB(vmIds);
  const agentMiB = await shareMiB(String(stack.agent.pid));
  for (const id of ids) await calls.remove(id);
  printFigures(
    `host memory of a further idle sandbox of ${memSizeMib} MiB, over ${fleet}`,
    { 'slope of MemAvailable': -slope(available), 'its machine (PSS), p50': median(machines) },
    { unit: 'MiB', target: '≤ 32' },
  );
  printFigures(
    'memory of the agent with all of them',
    { PSS: agentMiB },
    { unit: 'MiB', digits: 0 },
  );
}

/** Measures how much of its guest's memory the guest agent takes. */
export async function benchGuestAgent(bench: SandboxBench): Promise<void> {
  const { calls, memSizeMib } = bench;
  const id = await newSandbox(bench);
  // Not /proc/1/status: the kernel updates its counters only in batches of pages.
  const rollup = await calls.output(id, 'cat /proc/1/smaps_rollup');
  const mib = (name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'mu').exec(rollup)?.[1]) / 1024;
  await calls.remove(id);
  printFigures(
    `guest agent, resident in a guest of ${memSizeMib} MiB`,
    { all: mib('Rss'), 'its own data': mib('Anonymous') },
    { unit: 'MiB', target: '≤ 2 of its own data', digits: 2 },
  );
}
