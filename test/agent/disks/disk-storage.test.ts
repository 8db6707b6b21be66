/* Disks whose device or file system fails while they are mounted. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { DiskFiles } from '../../../agent/disks/disk-files.ts';
import { DiskStorage } from '../../../agent/disks/disk-storage.ts';
import { LoopDevices } from '../../../agent/disks/loop-devices.ts';
import { StorageCalls } from '../../../agent/disks/storage-calls.ts';
import { mountsBelow } from '../../../agent/system/mount-table.ts';
import { run } from '../../../agent/system/spawn.ts';
import { newHostId } from '../../../shared/ids.ts';
import { createLogger } from '../../../shared/log.ts';
import { MiB } from '../../../shared/units.ts';
import { newDiskRecord } from '../../helpers/disk-record.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

test('a disk that becomes read-only while it is mounted can be mounted again later', async (t) => {
  await using directory = await temporaryDirectory();
  const hostId = newHostId();
  const log = createLogger('test', {});
  const files = new DiskFiles(directory.path, 64 * MiB, hostId);
  await files.prepare();
  const record = newDiskRecord();
  const { id: diskId, accountId } = record;
  await files.create(record);
  const target = join(directory.path, 'mount');
  let fails = true;
  const storage = new DiskStorage({
    ...{ accountId, diskId, image: files.imagePath(diskId), target, log },
    held: join(directory.path, 'held'),
    loops: new LoopDevices(hostId, log),
    calls: new StorageCalls(),
    onMounted: async ({ contents }) => {
      if (fails) await run('mount', ['-o', 'remount,ro', target]);
      await mkdir(join(contents, 'new'));
    },
  });
  await t.throwsAsync(storage.mount(), { code: 'unavailable' });
  t.true(storage.isFree);
  t.deepEqual(await mountsBelow(directory.path), []);
  fails = false;
  await storage.mount();
  t.true(await storage.unmount());
});
