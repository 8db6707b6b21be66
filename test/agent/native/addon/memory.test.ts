/* The addon's call on the memory of the process. */
import { readFile } from 'node:fs/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import test from 'ava';
import { native } from '../../../../agent/native/native.ts';
import { KiB, MiB } from '../../../../shared/units.ts';

const BLOCK_BYTES = 16 * KiB; // Below the size of which malloc gives back each block.
const BLOCKS = 4 * KiB;
/** Blocks that stay in use, so that what is free lies between them and not at the end. */
const KEPT_EVERY = 8;

async function residentBytes(): Promise<number> {
  const rollup = await readFile('/proc/self/smaps_rollup', 'utf8');
  return Number(/^Rss:\s+(\d+) kB$/mu.exec(rollup)?.[1]) * KiB;
}

test('free memory between blocks that are in use goes back to the kernel', async (t) => {
  setFlagsFromString('--expose-gc');
  const collectGarbage = runInNewContext('gc') as () => void;
  const blocks = Array.from({ length: BLOCKS }, () => Buffer.alloc(BLOCK_BYTES, 1));
  const kept = blocks.filter((_block, index) => index % KEPT_EVERY === 0);
  blocks.length = 0;
  collectGarbage();
  collectGarbage(); // Waits until the first one has freed all of them.
  const before = await residentBytes();
  native.trimMemory();
  const after = await residentBytes();
  t.true(before - after > 40 * MiB, `${before} bytes before, ${after} after`);
  t.true(kept.every((block) => block.every((byte) => byte === 1)));
});
