import assert from 'node:assert';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { paths } from '../agent/system/paths.ts';
import { Template } from '../agent/machines/qemu/memory/template.ts';
import { MiB } from '../shared/units.ts';
import { BareRestore, STEPS } from './bare-restore.ts';
import { ending } from './ending.ts';
import { makeTemplate, type SandboxBench } from './sandbox-bench.ts';
import { inTurns, printComparison, printFigures, printRows } from './statistics.ts';

const MEM_SIZE_MIB = 256;

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
  const { calls, burst, prewarmed, rounds, stack, rootDisk } = bench;
  assert.equal(prewarmed, 0, 'beside a floor of restores nothing may be prewarmed: --prewarmed 0');
  await makeTemplate(bench, MEM_SIZE_MIB);
  using template = await openTemplate(bench);
  await using machines = new AsyncDisposableStack();
  const prepare = async (lane: number): Promise<BareRestore> =>
    machines.use(await BareRestore.prepare(join(stack.directory, `floor-${lane}`), rootDisk));
  const lanes = [await prepare(0), await prepare(1)] as const; // The development machine has two processors.
  const times = await inTurns(
    rounds,
    {
      ours: () => calls.startOnce(MEM_SIZE_MIB),
      bare: () => lanes[0].run(template, MEM_SIZE_MIB),
    },
    1,
  );
  printComparison(
    `create to first output, ${MEM_SIZE_MIB} MiB, nothing prewarmed, ${rounds} alternating rounds`,
    {
      ours: times.ours.map(({ outputMs }) => outputMs),
      baseline: times.bare.map(({ wallMs }) => wallMs),
    },
    { ours: 'HTTP', baseline: 'bare QEMU, restored' },
    { unit: 'ms', target: 'none: this is the floor' },
  );
  const rows = STEPS.map((name) => ({ name, samples: times.bare.map(({ steps }) => steps[name]) }));
  printRows('processor time of the bare QEMU, by step', rows, 'ms');
  const beganAt = performance.now();
  let left = burst;
  await Promise.all(
    lanes.map(async (lane) => {
      while (left > 0 && !ending.aborted) {
        left -= 1;
        await lane.run(template, MEM_SIZE_MIB);
      }
    }),
  );
  const seconds = (performance.now() - beganAt) / 1000;
  printFigures(
    `${burst} bare restores, ${lanes.length} at a time`,
    { 'all of them': seconds },
    { unit: 's' },
  );
}
