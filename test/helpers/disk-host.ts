import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import { AttachedDisks } from '../../agent/disks/attached-disks.ts';
import { DiskFiles } from '../../agent/disks/disk-files.ts';
import { DiskUses } from '../../agent/disks/disk-use.ts';
import { LoopDevices } from '../../agent/disks/loop-devices.ts';
import { StorageCalls } from '../../agent/disks/storage-calls.ts';
import { Journal } from '../../agent/system/journal/journal.ts';
import { clearUploads } from '../../agent/edge/s3/store/clear-uploads.ts';
import { Beat } from '../../agent/system/beat.ts';
import { StorageFence } from '../../agent/system/storage-fence.ts';
import { openDirectory } from '../../shared/directory/directory.ts';
import { newHostId } from '../../shared/ids.ts';
import { MiB } from '../../shared/units.ts';
import { newDiskRecord } from './disk-record.ts';
import { startRedis } from './redis.ts';
import { regionStorage } from './region-storage.ts';
import { temporaryDirectory } from './temporary.ts';

const log = pino({ level: 'silent' });
const backing = {
  check: async () => undefined,
  attach: () => Promise.reject(new Error('the disk has no object storage')),
  close: async () => undefined,
};

/**
 * A host with a storage of its own, on which there is one disk.
 * @param undo ends it
 * @returns with all that a `DiskActor` needs
 */
export async function openDiskHost(undo: AsyncDisposableStack) {
  const { path } = undo.use(await temporaryDirectory());
  const { redis } = undo.use(await startRedis());
  const [dataDir, runDir, place] = [join(path, 'data'), join(path, 'run'), join(path, 'storage')];
  for (const each of [dataDir, runDir, place]) await mkdir(each);
  const hostId = newHostId();
  const files = new DiskFiles(regionStorage(place, dataDir), 64 * MiB, hostId);
  await files.prepare();
  const record = newDiskRecord();
  await files.create(record);
  const disk = { accountId: record.accountId, diskId: record.id };
  const directory = openDirectory(redis, 'local-test');
  const journal = await Journal.open(join(dataDir, 'journal'));
  undo.defer(() => journal.close());
  const loops = new LoopDevices(hostId, log);
  undo.defer(() => loops.close());
  const uses = new DiskUses(directory, log);
  undo.defer(() => uses.close());
  const deps = {
    ...{
      hostId,
      dataDir,
      runDir,
      directory,
      files,
      loops,
      uses,
      backing,
      log,
      onMounted: clearUploads,
    },
    holds: journal.diskHolds,
    attachedDisks: new AttachedDisks({ count: 8, perAccountMax: 8 }),
    ...{ calls: new StorageCalls(), fence: new StorageFence(undefined, log), beat: new Beat() },
  };
  return { path, place, redis, record, disk, deps };
}
