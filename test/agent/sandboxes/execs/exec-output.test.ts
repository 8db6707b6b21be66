/*
 * Output of commands in sandboxes on the host's disk: the newest is kept, whatever cut a writer
 * off.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { mkdir, readdir, rename, rm, rmdir, stat, truncate, writeFile } from 'node:fs/promises';
import { once } from 'node:events';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import test from 'ava';
import * as fc from '../../../helpers/fast-check.ts';
import {
  ExecOutput,
  type OutputDirectory,
  readExecOutput,
  removeExecOutput,
} from '../../../../agent/sandboxes/execs/exec-output.ts';
import { onAnyThread } from '../../../../agent/sandboxes/execs/shared-threads.ts';
import { SANDBOX_LIMITS } from '../../../../agent/sandboxes/limits.ts';
import { mountSmall } from '../../../helpers/small-storage.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';
import { KiB, MiB } from '../../../../shared/units.ts';

const placeAt = (directory: string): OutputDirectory => ({ directory, onThread: onAnyThread });

test('both streams come back in their order, also while the command runs', async (t) => {
  await using directory = await temporaryDirectory();
  const id = randomUUID();
  const output = await ExecOutput.open(placeAt(directory.path), id);
  await output.append(1, 0, Buffer.from('one '));
  await output.append(2, 4, Buffer.from('problem'));
  await output.append(1, 11, Buffer.from('two'));
  const { stdout, stderr } = await readExecOutput(placeAt(directory.path), id);
  t.deepEqual([String(stdout), String(stderr)], ['one two', 'problem']);
  t.is(output.end, 14);
  await output.close();
});

test('output that cannot be read is no empty output', async (t) => {
  await using directory = await temporaryDirectory();
  const id = randomUUID();
  await mkdir(join(directory.path, `${id}.0`)); // Reading it fails, as storage that is lost does.
  await t.throwsAsync(readExecOutput(placeAt(directory.path), id), { code: 'unavailable' });
  const absent = await readExecOutput(placeAt(join(directory.path, 'absent')), id);
  t.is(absent.stdout.length, 0);
});

test('output that is on the disk already is skipped when it comes again', async (t) => {
  await using directory = await temporaryDirectory();
  const id = randomUUID();
  const output = await ExecOutput.open(placeAt(directory.path), id);
  await output.append(1, 0, Buffer.from('abcdef'));
  await output.append(1, 2, Buffer.from('cdefgh'));
  await output.append(1, 3, Buffer.from('def'));
  t.is(String((await readExecOutput(placeAt(directory.path), id)).stdout), 'abcdefgh');
  await output.close();
});

test('output older than a gap is dropped', async (t) => {
  await using directory = await temporaryDirectory();
  const id = randomUUID();
  const output = await ExecOutput.open(placeAt(directory.path), id);
  await output.append(1, 0, Buffer.from('old'));
  await output.append(1, 100, Buffer.from('new'));
  t.is(output.droppedBytes, 100);
  t.is(String((await readExecOutput(placeAt(directory.path), id)).stdout), 'new');
  await output.close();
});

test('of much output the newest is kept, in files that do not grow', async (t) => {
  await using directory = await temporaryDirectory();
  const id = randomUUID();
  const output = await ExecOutput.open(placeAt(directory.path), id);
  const pieces = Array.from({ length: 300 }, () => randomBytes(64 * KiB));
  for (const piece of pieces) await output.append(1, output.end, piece);
  const whole = Buffer.concat(pieces);
  const { stdout } = await readExecOutput(placeAt(directory.path), id);
  t.true(stdout.length >= SANDBOX_LIMITS.sandboxExecOutputBytes);
  t.true(whole.subarray(-stdout.length).equals(stdout));
  t.is(output.droppedBytes, whole.length - stdout.length);
  const files = await readdir(directory.path);
  t.true(files.length <= 2);
  for (const file of files) {
    const { size } = await stat(join(directory.path, file));
    t.true(size < SANDBOX_LIMITS.sandboxExecOutputBytes + 65 * KiB);
  }
  await output.close();
});

test('a writer cut off at any byte: the next one knows what is whole, and asks for the rest', async (t) => {
  await using directory = await temporaryDirectory();
  const piece = fc.tuple(
    fc.constantFrom<1 | 2>(1, 2),
    fc.uint8Array({ minLength: 1, maxLength: 9 }),
  );
  const cases = fc.tuple(fc.array(piece, { minLength: 1, maxLength: 8 }), fc.nat());
  await fc.assert(
    fc.asyncProperty(cases, async ([pieces, cut]) => {
      const id = randomUUID();
      const output = await ExecOutput.open(placeAt(directory.path), id);
      for (const [stream, bytes] of pieces) {
        await output.append(stream, output.end, Buffer.from(bytes));
      }
      await output.close();
      const path = join(directory.path, `${id}.0`);
      await truncate(path, cut % ((await stat(path)).size + 1));
      const again = await ExecOutput.open(placeAt(directory.path), id);
      let at = 0;
      for (const [stream, bytes] of pieces) {
        if (at + bytes.length > again.end) {
          const from = Math.max(again.end - at, 0);
          await again.append(stream, at + from, Buffer.from(bytes.subarray(from)));
        }
        at += bytes.length;
      }
      t.is(again.end, at);
      await again.close();
      const read = await readExecOutput(placeAt(directory.path), id);
      const of = (wanted: number): Buffer =>
        Buffer.concat(pieces.filter(([stream]) => stream === wanted).map(([, bytes]) => bytes));
      t.true(read.stdout.equals(of(1)));
      t.true(read.stderr.equals(of(2)));
    }),
    { numRuns: 200 },
  );
});

test('output that was written in part when its storage was full is whole when it comes again', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'small');
  const storage = mountSmall(path, 1);
  const place = placeAt(path);
  const id = randomUUID();
  const output = await ExecOutput.open(place, id);
  try {
    const [first, second] = [randomBytes(100 * KiB), randomBytes(100 * KiB)];
    await output.append(1, 0, first);
    await writeFile(join(path, 'filler'), Buffer.alloc(MiB - 150 * KiB));
    await t.throwsAsync(output.append(1, first.length, second), { code: 'ENOSPC' });
    const segment = join(path, `${id}.0`);
    t.true((await stat(segment)).size > first.length + 10, 'a part of it was written');
    await t.throwsAsync(output.append(1, first.length, second), { code: 'ENOSPC' });
    await rm(join(path, 'filler'));
    await output.append(1, first.length, second.subarray(0, 10));
    await output.append(2, first.length + 10, Buffer.from('problem'));
    const { stdout, stderr } = await readExecOutput(place, id);
    t.true(stdout.equals(Buffer.concat([first, second.subarray(0, 10)])));
    t.is(String(stderr), 'problem');
    const again = await ExecOutput.open(place, id);
    await again.close();
    t.is(again.end, output.end);
  } finally {
    await output.close();
    storage.unmount();
  }
});

test('a failed begin or removal of a segment is made up for when the output comes again', async (t) => {
  await using directory = await temporaryDirectory();
  const id = randomUUID();
  const output = await ExecOutput.open(placeAt(directory.path), id);
  const full = Buffer.alloc(SANDBOX_LIMITS.sandboxExecOutputBytes, 'a');
  await output.append(1, 0, full);
  const second = join(directory.path, `${id}.${full.length}`);
  await mkdir(second); // Opening it fails.
  await t.throwsAsync(output.append(1, full.length, full), { code: 'EISDIR' });
  await rmdir(second);
  await output.append(1, full.length, full);
  const first = join(directory.path, `${id}.0`);
  const aside = join(directory.path, 'aside');
  await rename(first, aside);
  await mkdir(first); // Nor can it be removed as a file.
  await t.throwsAsync(output.append(1, output.end, Buffer.from('end')));
  t.is(output.droppedBytes, 0);
  await rmdir(first);
  await output.append(1, output.end, Buffer.from('end'));
  t.is(output.droppedBytes, full.length);
  const { stdout } = await readExecOutput(placeAt(directory.path), id);
  t.true(stdout.equals(Buffer.concat([full, Buffer.from('end')])));
  await output.close();
});

test('output older than a gap goes also when it could not be removed at first', async (t) => {
  await using directory = await temporaryDirectory();
  const id = randomUUID();
  const output = await ExecOutput.open(placeAt(directory.path), id);
  await output.append(1, 0, Buffer.from('old'));
  const first = join(directory.path, `${id}.0`);
  await rename(first, join(directory.path, 'aside'));
  await mkdir(first);
  await t.throwsAsync(output.append(1, 100, Buffer.from('new')));
  await rmdir(first);
  await rename(join(directory.path, 'aside'), first);
  await output.append(1, 100, Buffer.from('new'));
  t.is(String((await readExecOutput(placeAt(directory.path), id)).stdout), 'new');
  await output.close();
});

test('removing takes only the output of this command', async (t) => {
  await using directory = await temporaryDirectory();
  const [mine, other] = [randomUUID(), randomUUID()];
  for (const id of [mine, other]) {
    const output = await ExecOutput.open(placeAt(directory.path), id);
    await output.append(1, 0, Buffer.from(id));
    await output.close();
  }
  await removeExecOutput(placeAt(directory.path), mine);
  t.is((await readExecOutput(placeAt(directory.path), mine)).stdout.length, 0);
  t.is(String((await readExecOutput(placeAt(directory.path), other)).stdout), other);
  await t.notThrowsAsync(removeExecOutput(placeAt(join(directory.path, 'nothing')), mine));
});

test('output of a great many small pieces is read', async (t) => {
  await using directory = await temporaryDirectory();
  const id = randomUUID();
  const pieces = 200_000;
  const piece = Buffer.from([1, 1, 0, 0, 0, 0x61]); // A frame of stdout with one byte.
  await writeFile(join(directory.path, `${id}.0`), Buffer.alloc(pieces * piece.length, piece));
  const { stdout } = await readExecOutput(placeAt(directory.path), id);
  t.is(stdout.length, pieces);
});

const MODULE = new URL('../../../../agent/sandboxes/execs/exec-output.ts', import.meta.url);
const READER = `
  const { parentPort, workerData } = require('node:worker_threads');
  const read = async ({ module, directory, id }) => {
    const { readExecOutput } = await import(module);
    const place = { directory, onThread: (call) => call() };
    const { stdout, stderr } = await readExecOutput(place, id);
    parentPort.postMessage([stdout.length, stderr.length]);
  };
  read(workerData);
`;

test('output of single bytes is read in little more memory than it has', async (t) => {
  await using directory = await temporaryDirectory();
  const id = randomUUID();
  const count = 2_000_000;
  const pair = Buffer.from('\u0001\u0001\0\0\0o\u0002\u0001\0\0\0e');
  await writeFile(join(directory.path, `${id}.0`), Buffer.alloc(count * pair.length, pair));
  const worker = new Worker(READER, {
    eval: true,
    workerData: { module: MODULE.href, directory: directory.path, id },
    resourceLimits: { maxOldGenerationSizeMb: 128 },
  });
  const [lengths] = (await once(worker, 'message')) as [number[]];
  t.deepEqual(lengths, [count, count]);
  await worker.terminate();
});
