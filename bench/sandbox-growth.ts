import { createOnce, newCreateTimes } from './create-once.ts';
import { makeTemplate, type SandboxBench, untilRested } from './sandbox-bench.ts';
import { printRows } from './statistics.ts';

const MEM_SIZE_MIB = 256;
/** How many sandboxes run beside the one that is created. */
const SIZES = [0, 10, 25, 50, 100, 200] as const;
const CREATES = 8;

/**
 * Creating a sandbox on a host that runs more and more of them, up to `--fleet`. When it is
 * interrupted, it prints the sizes that it got to.
 */
export async function benchGrowth(given: SandboxBench): Promise<void> {
  const bench = { ...given, memSizeMib: MEM_SIZE_MIB };
  const rows: Rows = { running: [], output: [], command: [] };
  await makeTemplate(bench, MEM_SIZE_MIB);
  try {
    await measureSizes(bench, rows);
  } finally {
    printRows(`create to running, ${MEM_SIZE_MIB} MiB`, rows.running, 'ms');
    printRows('create to first output', rows.output, 'ms');
    printRows('of it, the first command', rows.command, 'ms');
  }
}

async function measureSizes(bench: SandboxBench, rows: Rows): Promise<void> {
  const { calls, fleet, signal } = bench;
  const ids: string[] = [];
  for (const size of SIZES.filter((each) => each <= fleet)) {
    while (ids.length < size) ids.push(await calls.createRunning(MEM_SIZE_MIB));
    const times = newCreateTimes();
    for (let count = 0; count <= CREATES; count += 1) {
      signal.throwIfAborted();
      await untilRested(bench);
      await createOnce(calls, MEM_SIZE_MIB, {}, count === 0 ? undefined : times);
    }
    const name = `${size} sandboxes run`;
    const { runningMs, outputMs } = times;
    rows.running.push({ name, samples: runningMs });
    rows.output.push({ name, samples: outputMs });
    rows.command.push({
      name,
      samples: outputMs.map((ms, index) => ms - (runningMs[index] ?? Number.NaN)),
    });
  }
  for (const id of ids) await calls.remove(id);
}

type Rows = Record<'running' | 'output' | 'command', Row[]>;

interface Row {
  readonly name: string;
  readonly samples: readonly number[];
}
