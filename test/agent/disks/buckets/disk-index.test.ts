import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import { DiskIndex, type IndexRow } from '../../../../agent/disks/buckets/disk-index.ts';
import { KiB, MiB } from '../../../../shared/units.ts';
import { mountSmall } from '../../../helpers/small-storage.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

const log = pino({ level: 'silent' });

const rowOf = (path: string, inode: number): IndexRow => ({
  path,
  etag: `etag-${inode}`,
  modifiedMs: 1,
  sizeBytes: 2,
  inode: BigInt(inode),
  mtimeNs: 3n,
  ctimeNs: 4n,
  isPlaceholder: false,
});

test('lines that a full disk did not take are written once it has room', async (t) => {
  await using directory = await temporaryDirectory();
  const place = join(directory.path, 'small');
  const storage = mountSmall(place, 1);
  const path = join(place, 'index');
  const filler = join(place, 'filler');
  const index = await DiskIndex.open(path, log);
  try {
    index.set(rowOf('kept', 1));
    index.set(rowOf('gone', 2));
    await index.sync();
    await writeFile(filler, Buffer.alloc(MiB - 8 * KiB));
    for (let number = 3; number < 1_000; number += 1) index.set(rowOf(`file-${number}`, number));
    index.delete('gone');
    index.setPending('upload', 'mark');
    await t.throwsAsync(index.sync(), { code: 'ENOSPC' });
    await t.throwsAsync(index.sync(), { code: 'ENOSPC' });
    await rm(filler);
    index.set(rowOf('late', 1_000));
    await Promise.all([index.sync(), index.sync()]);
    const again = await DiskIndex.open(path, log);
    await again.close();
    t.deepEqual([...again.rows()], [...index.rows()]);
    t.deepEqual([...again.pendingPaths()], ['upload']);
    t.is(again.get('gone'), undefined);
  } finally {
    await index.close();
    storage.unmount();
  }
});
