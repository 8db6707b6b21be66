import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiClient } from '../test/helpers/api.ts';
import { Stack } from '../test/helpers/stack.ts';
import { printRows, timed } from './statistics.ts';

/** How many disks are attached, of which the calls use the last ones attached. */
const DISKS = [1, 10, 100, 1000] as const;
const CALLERS = [1, 2, 4, 8, 16, 32, 64] as const;
const CALLS = 100;
const CALLS_PER_CALLER_MIN = 4;
const AT_ONCE = 8;
const PACE_MS = 80;

interface Row {
  readonly name: string;
  readonly samples: readonly number[];
}

/** Exec of `true` as disks and callers grow in number. */
export async function benchExecGrowth(
  execOn: (api: ApiClient, diskId: string) => () => Promise<void>,
): Promise<void> {
  const stack = await Stack.start();
  try {
    const api = await stack.newClient();
    const execs: (() => Promise<void>)[] = [];
    const rows: Row[] = [];
    for (const count of DISKS) {
      await inParallel(count - execs.length, AT_ONCE, async () => {
        const name = `growth-${crypto.randomUUID()}`;
        const { id } = await api.data<{ id: string }>('POST', '/api/disks', { name });
        execs.push(execOn(api, id));
      });
      // All of them within the minute after which a disk that is not used is detached.
      const left = [...execs];
      await inParallel(left.length, 2 * AT_ONCE, async () => left.shift()?.());
      rows.push({ name: `${count} disks attached`, samples: await paced(execs.slice(-CALLS)) });
    }
    printRows(`exec of \`true\`, one per ${PACE_MS} ms`, rows, 'ms');
    printRows('exec of `true`, one disk, callers at once', await crowded(execs[0]), 'ms');
  } finally {
    await stack.stop();
  }
}

/** @returns milliseconds of each of {@link CALLS} calls */
async function paced(execs: readonly (() => Promise<void>)[]): Promise<number[]> {
  const samples: number[] = [];
  await sleep(1000); // The pool fills.
  for (let call = 0; call < CALLS; call += 1) {
    const tookMs = await timed(execs[call % execs.length] ?? (() => Promise.resolve()));
    samples.push(tookMs);
    await sleep(Math.max(0, PACE_MS - tookMs));
  }
  return samples;
}

async function crowded(exec: (() => Promise<void>) | undefined): Promise<Row[]> {
  const rows: Row[] = [];
  if (exec === undefined) return rows;
  for (const callers of CALLERS) {
    const samples: number[] = [];
    const calls = Math.max(CALLS, callers * CALLS_PER_CALLER_MIN);
    const begunAt = performance.now();
    await inParallel(calls, callers, async () => void samples.push(await timed(exec)));
    const perSecond = (calls * 1000) / (performance.now() - begunAt);
    rows.push({ name: `${callers} callers, ${perSecond.toFixed(0)}/s`, samples });
  }
  return rows;
}

/** Does a piece of work `count` times, `atOnce` at a time. */
async function inParallel(count: number, atOnce: number, work: () => Promise<void>): Promise<void> {
  let left = count;
  const worker = async (): Promise<void> => {
    while (left > 0) {
      left -= 1;
      await work();
    }
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
}
