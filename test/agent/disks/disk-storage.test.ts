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
import { regionStorage } from '../../helpers/region-storage.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

/** A disk that is not mounted. @param onMounted runs where an agent clears the disk's uploads */
async function newDisk(onMounted: (mount: string) => Promise<void>) {
  const directory = await temporaryDirectory();
  const hostId = newHostId();
  const log = createLogger('test', {});
  const files = new DiskFiles(regionStorage(directory.path), 64 * MiB, hostId);
  await files.prepare();
  const record = newDiskRecord();
  await files.create(record);
  const { id: diskId, accountId } = record;
  const [image, target] = [files.imagePath(diskId), join(directory.path, 'mount')];
  const storage = new DiskStorage({
    ...{ accountId, diskId, image, target, log },
    held: join(directory.path, 'held'),
    loops: new LoopDevices(hostId, log),
    calls: new StorageCalls(),
    onMounted: () => onMounted(target),
  });
  return {
    storage,
    image,
    mounts: () => mountsBelow(directory.path),
    [Symbol.asyncDispose]: () => directory[Symbol.asyncDispose](),
  };
}

test('a disk that becomes read-only while it is mounted can be mounted again later', async (t) => {
  let fails = true;
  await using disk = await newDisk(async (mount) => {
    if (fails) await run('mount', ['-o', 'remount,ro', mount]);
    await mkdir(join(mount, 'contents/new'));
  });
  await t.throwsAsync(disk.storage.mount(), { code: 'unavailable' });
  t.true(disk.storage.isFree);
  t.deepEqual(await disk.mounts(), []);
  fails = false;
  await disk.storage.mount();
  t.true(await disk.storage.unmount());
});

test('a disk that the kernel mounts read-only at most can be mounted again later', async (t) => {
  await using disk = await newDisk(async () => undefined);
  await run('tune2fs', ['-O', 'read-only', disk.image]);
  await t.throwsAsync(disk.storage.mount(), { code: 'unavailable' });
  t.true(disk.storage.isFree);
  t.deepEqual(await disk.mounts(), []);
  await run('tune2fs', ['-O', '^read-only', disk.image]);
  await disk.storage.mount();
  t.true(await disk.storage.unmount());
});
