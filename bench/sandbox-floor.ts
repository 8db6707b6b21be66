import assert from 'node:assert';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { paths } from '../agent/system/paths.ts';
import { Template } from '../agent/machines/qemu/memory/template.ts';
import { MiB } from '../shared/units.ts';
import { BareRestore, type Steps } from './bare-restore.ts';
import { createOnce, newCreateTimes } from './create-once.ts';
import { makeTemplate, type SandboxBench } from './sandbox-bench.ts';
import { printComparison, printFigures, printRows } from './statistics.ts';

const MEM_SIZE_MIB = 256;
/** The development machine has so many processors. */
const LANES = 2;

/** The template of the stack's host for machines of this size. */
async function openTemplate({ stack }: SandboxBench): Promise<Template> {
  const directory = paths.templates(stack.environment['AGENT_DATA_DIR'] ?? '');
  for (const key of await readdir(directory)) {
    const manifest: unknown = JSON.parse(
      await readFile(join(directory, key, 'template.json'), 'utf8'),
    );
    const { ramBytes } = manifest as { readonly ramBytes: number };
    if (ramBytes === MEM_SIZE_MIB * MiB) return Template.open(join(directory, key), key);
  }
  throw new Error(`there is no template of ${MEM_SIZE_MIB} MiB`);
}

/**
 * How far QEMU itself goes: restored from the template until a first command has put something out,
 * without any of Berth around it; beside creations, which must find nothing prewarmed.
 */
export async function benchFloor(bench: SandboxBench): Promise<void> {
  const { calls, burst, prewarmed, rounds, signal, stack, rootDisk } = bench;
  assert.equal(prewarmed, 0, 'beside a floor of restores nothing may be prewarmed: --prewarmed 0');
  await makeTemplate(bench, MEM_SIZE_MIB);
  using template = await openTemplate(bench);
  await using machines = new AsyncDisposableStack();
  const lanes: BareRestore[] = [];
  for (let lane = 0; lane < LANES; lane += 1) {
    const directory = join(stack.directory, `floor-${lane}`);
    lanes.push(machines.use(await BareRestore.prepare(directory, rootDisk)));
  }
  const times = newCreateTimes();
  const bare: { steps: Steps; wallMs: number }[] = [];
  for (let round = 0; round <= rounds; round += 1) {
    signal.throwIfAborted();
    await createOnce(calls, MEM_SIZE_MIB, {}, round === 0 ? undefined : times);
    const run = await lanes[0]?.run(template, MEM_SIZE_MIB);
    if (round > 0 && run !== undefined) bare.push(run);
  }
  printComparison(
    `create to first output, ${MEM_SIZE_MIB} MiB, nothing prewarmed, ${rounds} alternating rounds`,
    { ours: times.outputMs, baseline: bare.map(({ wallMs }) => wallMs) },
    { ours: 'HTTP', baseline: 'bare QEMU, restored' },
    { unit: 'ms', target: 'none: this is the floor' },
  );
  const names = Object.keys(bare[0]?.steps ?? {}) as (keyof Steps)[];
  const rows = names.map((name) => ({ name, samples: bare.map(({ steps }) => steps[name]) }));
  printRows('processor time of the bare QEMU, by step', rows, 'ms');
  const beganAt = performance.now();
  let left = burst;
  await Promise.all(
    lanes.map(async (lane) => {
      for (; left > 0 && !signal.aborted;) {
        left -= 1;
        await lane.run(template, MEM_SIZE_MIB);
      }
    }),
  );
  const seconds = (performance.now() - beganAt) / 1000;
  printFigures(
    `${burst} bare restores, ${LANES} at a time`,
    { 'all of them': seconds },
    { unit: 's' },
  );
}
