/* A host that cannot go on after it has mounted a disk does not keep the disk mounted. */
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import type { DiskLayout } from '../../../agent/disks/disk-layout.ts';
import { DiskActor } from '../../../agent/disks/disk-actor.ts';
import { DiskFiles } from '../../../agent/disks/disk-files.ts';
import { DiskUses } from '../../../agent/disks/disk-use.ts';
import { LoopDevices } from '../../../agent/disks/loop-devices.ts';
import { StorageCalls } from '../../../agent/disks/storage-calls.ts';
import { clearUploads } from '../../../agent/objects/store/clear-uploads.ts';
import { StorageFence } from '../../../agent/system/storage-fence.ts';
import { openDirectory } from '../../../shared/directory/directory.ts';
import { keys } from '../../../shared/directory/keys.ts';
import { AppError } from '../../../shared/errors.ts';
import { newHostId } from '../../../shared/ids.ts';
import { MiB } from '../../../shared/units.ts';
import { newDiskRecord } from '../../helpers/disk-record.ts';
import { startRedis } from '../../helpers/redis.ts';
import { regionStorage } from '../../helpers/region-storage.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { waitFor } from '../../helpers/wait.ts';

const log = pino({ level: 'silent' });
const backing = {
  check: async () => undefined,
  attach: () => Promise.reject(new Error('the disk has no object storage')),
  close: async () => undefined,
};

test('a disk is not left mounted when Redis is lost while a former host is recorded', async (t) => {
  await using temporary = await temporaryDirectory();
  await using started = await startRedis();
  const { redis } = started;
  const [dataDir, place] = [join(temporary.path, 'data'), join(temporary.path, 'storage')];
  for (const each of [dataDir, place]) await mkdir(each);
  const hostId = newHostId();
  const files = new DiskFiles(regionStorage(place, dataDir), 64 * MiB, hostId);
  await files.prepare();
  const record = newDiskRecord();
  await files.create(record);
  const directory = openDirectory(redis, 'local-test');
  const disk = { accountId: record.accountId, diskId: record.id };
  // A lease that ended without a release: the next host records that it has the disk alone.
  await directory.diskLeases.acquire(disk, newHostId(), 1);
  const loops = new LoopDevices(hostId, log);
  const uses = new DiskUses(directory, log);
  let isLost = true;
  const onMounted = async (layout: DiskLayout): Promise<void> => {
    await clearUploads(layout);
    if (isLost) redis.disconnect();
  };
  const actor = new DiskActor(
    {
      ...{ hostId, dataDir, directory, files, loops, uses, backing, log, onMounted },
      ...{ calls: new StorageCalls(), fence: new StorageFence(undefined, log) },
    },
    disk,
  );
  const isMounted = async (): Promise<boolean> =>
    (await readFile('/proc/self/mountinfo', 'utf8')).includes(`/${record.id} `);
  try {
    const lease = keys.diskLease('local-test', disk.accountId, disk.diskId);
    await waitFor('the end of the lease', async () => (await redis.exists(lease)) === 0);
    await t.throwsAsync(actor.claim('a test', () => undefined));
    t.false(await isMounted());
    isLost = false;
    await redis.connect();
    const claim = await actor.claim('a test', () => undefined);
    await writeFile(join(claim.path, 'file'), 'well');
    claim.release();
    t.true(await isMounted());
  } finally {
    await actor.close(new AppError('unavailable', 'the test ends'));
    await uses.close();
    await loops.close();
  }
});
