/* The body of an object on its way to a file. */
import { fstatSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { setImmediate as turn } from 'node:timers/promises';
import test from 'ava';
import { onBehalfOf, onDiskThread, poolThreads } from '../../../../../agent/disks/disk-threads.ts';
import { writeBody } from '../../../../../agent/edge/s3/store/write-body.ts';
import { run } from '../../../../../agent/system/spawn.ts';
import { DISK_LIMITS } from '../../../../../agent/disks/limits.ts';
import { MiB } from '../../../../../shared/units.ts';
import { bodyOf, mountDisk } from '../../../../helpers/mounted-disk.ts';

/** How many of its account's threads a test must hold so that one is left. */
const ALL_BUT_ONE = Math.min(DISK_LIMITS.diskThreadsPerAccountMax, Math.ceil(poolThreads / 2)) - 1;

test('a body whose hashing fails is given up only when its write has ended', async (t) => {
  await using disk = await mountDisk(64 * MiB);
  await using file = await open(join(disk.layout.uploads, 'file'), 'wx+');
  const caller = new AbortController();
  const held = Promise.withResolvers<void>();
  const sizeAtEnd = await onBehalfOf('account', caller.signal, async () => {
    const others = Array.from({ length: ALL_BUT_ONE }, () => onDiskThread(() => held.promise));
    await run('fsfreeze', ['-f', disk.mount]);
    try {
      // The write has the last thread, and hangs; the MD5 waits for one until the caller leaves.
      const ended = writeBody(file.fd, bodyOf(Buffer.alloc(MiB))).then(
        () => 'written',
        () => fstatSync(file.fd).size,
      );
      await turn();
      caller.abort();
      await turn();
      return { ended };
    } finally {
      await run('fsfreeze', ['-u', disk.mount]);
      held.resolve();
      await Promise.all(others);
    }
  });
  t.is(await sizeAtEnd.ended, MiB);
});
