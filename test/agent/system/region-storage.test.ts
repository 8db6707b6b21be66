/* Storage that is not mounted is never taken for the region's, and nothing is written below it. */
import { mkdir, readdir, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { DiskFiles } from '../../../agent/disks/disk-files.ts';
import { paths } from '../../../agent/system/paths.ts';
import { RegionStorage } from '../../../agent/system/region-storage.ts';
import { MiB } from '../../../shared/units.ts';
import { newDiskRecord } from '../../helpers/disk-record.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

interface Context {
  readonly temporary: AsyncDisposable;
  /** The mount point. */
  readonly directory: string;
  readonly newHost: (isFirst: boolean, name?: string) => Promise<RegionStorage>;
  /** Unmounts the storage, or mounts it again. */
  readonly unmount: () => Promise<void>;
  readonly mount: () => Promise<void>;
}

const test = anyTest as TestFn<Context>;
const HOST = 'host-aaaaaaaaaaaa';

test.beforeEach(async (t) => {
  const temporary = await temporaryDirectory();
  const directory = join(temporary.path, 'storage');
  const away = join(temporary.path, 'away');
  Object.assign(t.context, {
    temporary,
    directory,
    newHost: async (isFirst: boolean, name = 'host') => {
      const dataDir = join(temporary.path, name);
      await mkdir(dataDir, { recursive: true });
      return new RegionStorage({ directory, dataDir, isFirstHost: async () => isFirst });
    },
    unmount: async () => {
      await rename(directory, away);
      await mkdir(directory);
    },
    mount: async () => {
      await rename(directory, join(temporary.path, 'mount-point'));
      await rename(away, directory);
    },
  });
});

test.afterEach.always((t) => t.context.temporary[Symbol.asyncDispose]());

test('the first host of a region lays its storage out, others find it', async (t) => {
  const { newHost, directory } = t.context;
  await (await newHost(true, 'first')).check();
  await (await newHost(false, 'second')).check();
  t.deepEqual(await readdir(directory), ['storage.json']);
});

test('a later host refuses a directory that is no storage, and leaves it alone', async (t) => {
  const { newHost, directory } = t.context;
  const host = await newHost(false);
  await t.throwsAsync(host.check(), { message: /not the storage of the region.*storage\.json/u });
  await t.throwsAsync(readdir(directory), { code: 'ENOENT' });
  await mkdir(directory);
  await t.throwsAsync(host.check(), { message: /not the storage of the region/u });
  t.deepEqual(await readdir(directory), []);
});

test('storage from before there were marks gets one, whichever host sees it', async (t) => {
  const { newHost, directory } = t.context;
  await mkdir(join(directory, 'disks'), { recursive: true });
  await (await newHost(false)).check();
  t.deepEqual(await readdir(directory), ['disks', 'storage.json']);
});

test('a host whose storage is not mounted refuses it at its start, until it is', async (t) => {
  const { newHost, directory, unmount, mount } = t.context;
  await (await newHost(true)).check();
  await unmount();
  for (const isFirst of [true, false]) {
    const again = await newHost(isFirst);
    await t.throwsAsync(again.check(), { message: /not mounted\. Mount it/u });
    t.deepEqual(await readdir(directory), []);
    await mkdir(join(directory, 'disks'), { recursive: true });
    await t.throwsAsync(again.check(), { message: /not mounted/u }, 'nor what a former agent made');
    await rename(join(directory, 'disks'), `${directory}-disks-${String(isFirst)}`);
  }
  await mount();
  await (await newHost(false)).check();
  t.pass();
});

test('a host refuses the storage of another region', async (t) => {
  const { newHost, directory, unmount } = t.context;
  await (await newHost(true)).check();
  const mark = await readFile(join(directory, 'storage.json'), 'utf8');
  await unmount();
  await (await newHost(true, 'other')).check();
  t.not(await readFile(join(directory, 'storage.json'), 'utf8'), mark);
  const host = await newHost(true);
  await t.throwsAsync(host.check(), { message: /is of another storage/u });
});

test('a host whose storage was lost for good takes a new one by its operator’s word', async (t) => {
  const { newHost, directory, unmount } = t.context;
  await (await newHost(true)).check();
  await unmount();
  await rm(paths.diskStorage(join(directory, '../host')));
  await mkdir(join(directory, 'disks'));
  await (await newHost(false)).check();
  t.pass();
});

test('while its storage is away no disk is made, found missing or deleted', async (t) => {
  const { newHost, directory, unmount, mount } = t.context;
  const files = new DiskFiles(await newHost(true), 16 * MiB, HOST);
  await files.prepare();
  const record = newDiskRecord();
  await files.create(record);
  await unmount();
  const isAway = { code: 'unavailable' };
  await t.throwsAsync(files.exists(record.id), isAway);
  await t.throwsAsync(files.create(newDiskRecord()), isAway);
  await t.throwsAsync(files.remove(record.id), isAway);
  await t.throwsAsync(files.prepare(), isAway);
  t.deepEqual(await readdir(directory), []);
  await mount();
  t.true(await files.exists(record.id));
  t.false(await files.exists(newDiskRecord().id));
  await files.remove(record.id);
  await files.remove(record.id);
  t.false(await files.exists(record.id));
});

test('storage that cannot be read is not called another one', async (t) => {
  const { newHost, directory } = t.context;
  await (await newHost(true)).check();
  const mark = join(directory, 'storage.json');
  await rm(mark);
  await mkdir(mark); // Any error will do: reading a directory gives EISDIR.
  const refusal = /^STORAGE_DIR cannot be read: EISDIR.*Mount it once more/u;
  await t.throwsAsync((await newHost(true)).check(), { message: refusal });
});
