import assert from 'node:assert';
import { rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { run } from '../agent/system/spawn.ts';
import { ending } from './ending.ts';
import { besideBoots, newSandbox, type SandboxBench, sandboxDirectory } from './sandbox-bench.ts';
import { inTurns, median, printComparison, printRows, timed } from './statistics.ts';
import { MiB } from '../shared/units.ts';

const DIRTY_MIB = 512;
/** From a resume to the next pause, so that the host can remove the former checkpoint. */
const WORK_MS = 1_000;
/** From a pause to the next resume, so that the host can release the machine's resources. */
const REST_MS = 300;

const pagesOf = async (bench: SandboxBench, id: string): Promise<string> =>
  join(await sandboxDirectory(bench, id), 'checkpoint/pages');

interface Pause {
  readonly pauseMs: number;
  readonly resumeMs: number;
  readonly pagesBytes: number;
}

/** @param whilePaused is called with the path of the file with the changed pages */
async function pauseOnce(
  bench: SandboxBench,
  id: string,
  whilePaused: (pages: string) => Promise<void> = async () => undefined,
): Promise<Pause> {
  const { calls } = bench;
  const pauseMs = await timed(() => calls.pause(id));
  const pages = await pagesOf(bench, id);
  const { size: pagesBytes } = await stat(pages);
  await whilePaused(pages);
  await sleep(REST_MS, undefined, { signal: ending });
  const resumeMs = await timed(() => calls.resume(id));
  assert.equal(await calls.output(id, 'cat /run/mark'), 'here\n');
  return { pauseMs, resumeMs, pagesBytes };
}

/** Pause and resume of a guest that did little, beside cold boots. */
export async function benchPause(bench: SandboxBench): Promise<void> {
  const { calls, memSizeMib, rounds } = bench;
  const { ours, boots } = await besideBoots(bench, async () => {
    const id = await newSandbox(bench);
    await calls.output(id, 'echo here > /run/mark');
    const pause = await pauseOnce(bench, id);
    await calls.remove(id);
    return pause;
  });
  const names = { ours: 'HTTP', baseline: 'bare QEMU, cold boot' };
  const baseline = boots.map(({ runningMs }) => runningMs);
  const options = { unit: 'ms', target: '≤ 0.06' };
  const size = (median(ours.map(({ pagesBytes }) => pagesBytes)) / MiB).toFixed(1);
  const shape = `${memSizeMib} MiB, little used, ${rounds} alternating rounds`;
  const pauses = ours.map(({ pauseMs }) => pauseMs);
  const resumes = ours.map(({ resumeMs }) => resumeMs);
  printComparison(
    `pause until durable, ${shape}; ${size} MiB of pages`,
    { ours: pauses, baseline },
    names,
    options,
  );
  printComparison(`resume to running, ${shape}`, { ours: resumes, baseline }, names, {
    ...options,
    target: '≤ 0.03',
  });
}

/** Pause of a guest that filled much of its memory, beside a copy of as many bytes. */
export async function benchDirtyPause(bench: SandboxBench): Promise<void> {
  const { calls, memSizeMib, rounds, stack } = bench;
  const id = await newSandbox(bench);
  await calls.output(id, 'mount -o remount,size=90% /run; echo here > /run/mark');
  await calls.output(id, `head -c ${DIRTY_MIB}M /dev/urandom > /run/random`);
  const copy = join(stack.directory, 'copy');
  const { ours } = await inTurns(
    rounds,
    {
      async ours() {
        await sleep(WORK_MS, undefined, { signal: ending });
        let copyMs = 0;
        const pause = await pauseOnce(bench, id, async (pages) => {
          const args = [`if=${pages}`, `of=${copy}`, 'bs=1M', 'conv=fsync', 'status=none'];
          copyMs = await timed(() => run('dd', args));
          await rm(copy);
        });
        return { ...pause, copyMs };
      },
    },
    1,
  );
  await calls.remove(id);
  const size = (median(ours.map(({ pagesBytes }) => pagesBytes)) / MiB).toFixed(0);
  printComparison(
    `pause until durable, ${memSizeMib} MiB, ${DIRTY_MIB} MiB of them random, ${rounds} alternating ` +
      `rounds; ${size} MiB of pages`,
    { ours: ours.map(({ pauseMs }) => pauseMs), baseline: ours.map(({ copyMs }) => copyMs) },
    { ours: 'HTTP', baseline: 'dd conv=fsync of the pages' },
    { unit: 'ms', target: '≤ 1.5' },
  );
  const resumes = ours.map(({ resumeMs }) => resumeMs);
  printRows('resume of the same', [{ name: 'HTTP', samples: resumes }], 'ms');
}
