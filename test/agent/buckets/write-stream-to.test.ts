/* Contents of objects on their way to a file of a disk. */
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { setImmediate as turn } from 'node:timers/promises';
import test from 'ava';
import { writeStreamTo } from '../../../agent/buckets/write-stream-to.ts';
import { run } from '../../../agent/system/spawn.ts';
import { MiB } from '../../../shared/units.ts';
import { mountDisk } from '../../helpers/mounted-disk.ts';
import { waitFor } from '../../helpers/wait.ts';

test('a failed write leaves no sync of the file under way', async (t) => {
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
    await t.throwsAsync(writeStreamTo(file.fd, Readable.from(body())), { code: 'EPERM' });
    await turn(); // The call that told of its end is listed until then.
    t.false(process.getActiveResourcesInfo().includes('FSReqCallback'));
  } finally {
    await run('chattr', ['-i', path]);
  }
});
