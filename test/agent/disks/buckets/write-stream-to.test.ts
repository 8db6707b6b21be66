/* Contents of objects on their way to a file of a disk. */
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { writeStreamTo } from '../../../../agent/disks/buckets/write-stream-to.ts';
import { run } from '../../../../agent/system/spawn.ts';
import { MiB } from '../../../../shared/units.ts';
import { mountDisk } from '../../../helpers/mounted-disk.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';
import { waitFor } from '../../../helpers/wait.ts';

// By itself: it looks at all calls of the process.
test.serial('a failed write leaves no sync of the file under way', async (t) => {
  await using disk = await mountDisk(128 * MiB);
  const path = join(disk.layout.contents, 'file');
  await using file = await open(path, 'wx');
  const chunk = Buffer.alloc(MiB - 1); // Two make a batch.
  async function* body(): AsyncGenerator<Buffer> {
    for (let count = 0; count < 32; count += 1) yield chunk;
    await waitFor('the writes', async () => (await file.stat()).size === 32 * chunk.length);
    await run('chattr', ['+i', path]);
    yield chunk; // The rest, with which 32 MiB have come, and the sync begins.
  }
  try {
    await t.throwsAsync(writeStreamTo(file.fd, Readable.from(body()), { sizeBytes: 64 * MiB }), {
      code: 'EPERM',
    });
    await turn(); // The call that told of its end is listed until then.
    t.false(process.getActiveResourcesInfo().includes('FSReqCallback'));
  } finally {
    await run('chattr', ['-i', path]);
  }
});

/** Writes to a new file what arrives, one piece after the other, without an end. */
async function writeEndless(
  { piece, pauseMs }: { piece: Buffer; pauseMs: number },
  expected: { sizeBytes: number; cutAt?: number },
  pace?: { bytes: number; ms: number },
): Promise<void> {
  await using directory = await temporaryDirectory();
  await using file = await open(join(directory.path, 'file'), 'wx');
  async function* body(): AsyncGenerator<Buffer> {
    for (;;) {
      await sleep(pauseMs);
      yield piece;
    }
  }
  await writeStreamTo(file.fd, Readable.from(body()), expected, pace);
}

test('an object that comes byte by byte is given up', async (t) => {
  const [sent, pace] = [
    { piece: Buffer.of(1), pauseMs: 20 },
    { bytes: 1_000, ms: 300 },
  ];
  const message = 'the storage sends the object too slowly';
  await t.throwsAsync(writeEndless(sent, { sizeBytes: 10 * MiB }, pace), { message });
});

test('an object that goes on beyond its size is given up', async (t) => {
  const message = `the storage sent more than the ${3 * MiB} bytes`;
  const sent = { piece: Buffer.alloc(MiB), pauseMs: 0 };
  await t.throwsAsync(writeEndless(sent, { sizeBytes: 3 * MiB }), { message });
});

test('of an object that does not end only what is wanted is read', async (t) => {
  const sent = { piece: Buffer.alloc(MiB), pauseMs: 0 };
  await t.notThrowsAsync(writeEndless(sent, { sizeBytes: 2 ** 53 - 1, cutAt: 1 }));
});
