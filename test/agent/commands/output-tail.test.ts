import { readdir } from 'node:fs/promises';
import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { OutputTail } from '../../../agent/commands/output-tail.ts';
import { OutputTurns } from '../../../agent/commands/output-turns.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { KiB } from '../../../shared/units.ts';

test('keeps the last bytes and counts the others, however they come', async (t) => {
  await using directory = await temporaryDirectory();
  const place = { directory: directory.path, turns: new OutputTurns() };
  // Sizes on both sides of what is kept in memory and of the bound.
  const sizes = fc.array(fc.integer({ min: 0, max: 200 * KiB }), { maxLength: 12 });
  const bound = fc.integer({ min: 100 * KiB, max: 700 * KiB });
  const property = fc.asyncProperty(bound, sizes, async (bytesMax, lengths) => {
    const tail = new OutputTail(bytesMax, place);
    let written = Buffer.alloc(0);
    for (const [index, length] of lengths.entries()) {
      const part = Buffer.alloc(length, `${index}-${length},`);
      await tail.write(part);
      written = Buffer.concat([written, part]);
    }
    t.true((await tail.read()).equals(written.subarray(-bytesMax)));
    t.is(tail.droppedBytes, Math.max(0, written.length - bytesMax));
    t.is(tail.keptBytes, Math.min(written.length, bytesMax));
    t.deepEqual(await readdir(directory.path), []);
    await tail.close();
  });
  await fc.assert(property, { numRuns: 50 });
});

test('what is written after the tail was closed opens no file', async (t) => {
  const tail = new OutputTail(KiB, { directory: '/nowhere', turns: new OutputTurns() });
  await tail.close();
  await t.notThrowsAsync(async () => tail.write(Buffer.alloc(1024 * KiB)));
});
