import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { DiskFiles } from '../../../agent/disks/disk-files.ts';
import { mountImage, unmountImage, usedBytes } from '../../../agent/disks/mount.ts';
import { run } from '../../../agent/system/spawn.ts';
import { newDiskRecord } from '../../helpers/disk-record.ts';
import { FIRST_LOOP } from '../../helpers/mounted-disk.ts';
import { regionStorage } from '../../helpers/region-storage.ts';
import { mountSmall } from '../../helpers/small-storage.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { MiB } from '../../../shared/units.ts';
import { isFull } from '../../helpers/full.ts';

const SIZE_BYTES = 16 * MiB;
const HOST = 'host-aaaaaaaaaaaa';
const OTHER_HOST = 'host-bbbbbbbbbbbb';

async function storage(): Promise<AsyncDisposable & { path: string; files: DiskFiles }> {
  const directory = await temporaryDirectory();
  const files = new DiskFiles(regionStorage(directory.path), SIZE_BYTES, HOST);
  await files.prepare();
  return Object.assign(directory, { files });
}

test('a disk is a sparse image with a sound file system and its record beside it', async (t) => {
  await using store = await storage();
  const record = newDiskRecord();
  t.false(await store.files.exists(record.id));
  await store.files.create(record);
  t.true(await store.files.exists(record.id));
  t.deepEqual((await store.files.readManifest(record.id)).disk, record);
  t.deepEqual(await store.files.list(), [record.id]);
  const image = store.files.imagePath(record.id);
  const { size, blocks, mode } = await stat(image);
  t.is(size, SIZE_BYTES);
  t.true(blocks * 512 < SIZE_BYTES / 2);
  t.is(mode & 0o777, 0o600);
  await t.notThrowsAsync(run('e2fsck', ['-f', '-n', image]));
});

test('the root belongs to whom the record says, and is empty', async (t) => {
  await using store = await storage();
  const record = newDiskRecord({ rootAttrs: { uid: 1000, gid: 2000, mode: 0o750 } });
  await store.files.create(record);
  const target = join(store.path, 'mount');
  const image = store.files.imagePath(record.id);
  await mountImage(image, target, FIRST_LOOP);
  try {
    const { uid, gid, mode } = await stat(target);
    t.deepEqual([uid, gid, mode & 0o7777], [1000, 2000, 0o750]);
    t.deepEqual(await readdir(target), []);
    t.true((await usedBytes(target)) < SIZE_BYTES / 2);
    await writeFile(join(target, 'file'), Buffer.alloc(MiB));
  } finally {
    await unmountImage(image, target);
  }
  await t.throwsAsync(stat(target), { code: 'ENOENT' });
});

test('unmounting takes the disk out of every mount namespace of the host', async (t) => {
  await using store = await storage();
  const record = newDiskRecord();
  await store.files.create(record);
  const image = store.files.imagePath(record.id);
  const target = join(store.path, 'mount');
  await mountImage(image, target, FIRST_LOOP);
  // A container that starts also has a copy of all mounts for a moment.
  const options = ['--mount', '--propagation', 'slave', 'sh', '-c', 'echo copied; exec sleep 1000'];
  const copy = spawn('unshare', options, { stdio: ['ignore', 'pipe', 'ignore'] });
  try {
    await once(copy.stdout, 'data');
    t.deepEqual(await unmountImage(image, target), { isFree: true, wasInUse: false });
    t.is(copy.exitCode, null);
  } finally {
    copy.kill('SIGKILL');
  }
});

test('an image in use is not mounted a second time', async (t) => {
  await using store = await storage();
  const record = newDiskRecord();
  await store.files.create(record);
  const image = store.files.imagePath(record.id);
  const [target, other] = [join(store.path, 'mount'), join(store.path, 'other')];
  await mountImage(image, target, FIRST_LOOP);
  try {
    await t.throwsAsync(mountImage(image, other, FIRST_LOOP), { code: 'unavailable' });
  } finally {
    await unmountImage(image, target);
  }
});

test('making a disk that is there leaves it alone', async (t) => {
  await using store = await storage();
  const record = newDiskRecord();
  await store.files.create(record);
  const before = await stat(store.files.imagePath(record.id), { bigint: true });
  await store.files.create({ ...record, name: 'another' });
  const after = await stat(store.files.imagePath(record.id), { bigint: true });
  t.deepEqual([after.ino, after.mtimeNs], [before.ino, before.mtimeNs]);
  t.is((await store.files.readManifest(record.id)).disk.name, 'disk');
});

test('a disk that cannot be made leaves nothing', async (t) => {
  await using store = await storage();
  const tooSmall = new DiskFiles(regionStorage(store.path), 1024, HOST);
  await t.throwsAsync(tooSmall.create(newDiskRecord()));
  t.deepEqual(await readdir(join(store.path, 'disks')), []);
});

test('a leftover that cannot be removed leaves the others none the less, and goes later', async (t) => {
  await using store = await storage();
  const disks = join(store.path, 'disks');
  const held = `.${HOST}-000000000001`;
  const mount = mountSmall(join(disks, held, 'mount'), 1);
  try {
    await mkdir(join(disks, `.${HOST}-000000000000`));
    await mkdir(join(disks, `.${HOST}-000000000002`));
    await t.throwsAsync(store.files.prepare(), { code: 'EBUSY' });
    t.deepEqual(await readdir(disks), [held]);
    await t.throwsAsync(store.files.removeLeftovers(), { code: 'EBUSY' });
  } finally {
    mount.unmount();
  }
  await store.files.removeLeftovers();
  t.deepEqual(await readdir(disks), []);
});

test('removing is one step, and may be repeated', async (t) => {
  await using store = await storage();
  const record = newDiskRecord();
  await store.files.create(record);
  await store.files.remove(record.id);
  await t.notThrowsAsync(store.files.remove(record.id));
  t.deepEqual(await readdir(join(store.path, 'disks')), []);
});

test('a manifest is replaced whole', async (t) => {
  await using store = await storage();
  const record = newDiskRecord();
  await store.files.create(record);
  await Promise.all(
    Array.from({ length: 20 }, (_, revision) =>
      store.files.writeManifest({ ...record, revision: revision + 1 }),
    ),
  );
  t.true((await store.files.readManifest(record.id)).disk.revision >= 1);
  const names = await readdir(join(store.path, 'disks', record.id));
  t.deepEqual(
    names.toSorted((a, b) => (a < b ? -1 : 1)),
    ['image.ext4', 'manifest.json'],
  );
});

test('at the start a host clears its own leftovers, not those of others', async (t) => {
  await using store = await storage();
  const disks = join(store.path, 'disks');
  const record = newDiskRecord();
  await store.files.create(record);
  for (const name of [`.${HOST}-0123`, `.${OTHER_HOST}-0123`]) {
    await mkdir(join(disks, name));
    await writeFile(join(disks, name, 'image.ext4'), 'half made');
  }
  await store.files.prepare();
  t.deepEqual(
    (await readdir(disks)).toSorted((a, b) => (a < b ? -1 : 1)),
    [`.${OTHER_HOST}-0123`, record.id],
  );
  t.deepEqual(await store.files.list(), [record.id]);
});

test('an agent that dies while it makes or removes disks leaves each whole or not at all', async (t) => {
  await using store = await storage();
  const records = Array.from({ length: 50 }, () => newDiskRecord());
  const module = new URL('../../../agent/disks/disk-files.ts', import.meta.url).href;
  const helper = new URL('../../helpers/region-storage.ts', import.meta.url).href;
  const text = `
    const { DiskFiles } = await import('${module}');
    const { regionStorage } = await import('${helper}');
    const storage = regionStorage(${JSON.stringify(store.path)});
    const files = new DiskFiles(storage, ${SIZE_BYTES}, '${HOST}');
    console.log('ready');
    for (const [index, record] of ${JSON.stringify(records)}.entries()) {
      await files.create(record);
      if (index % 2 === 0) await files.remove(record.id);
    }`;
  for (let round = 0; round < (isFull ? 20 : 4); round += 1) {
    const child = spawn(process.execPath, ['--input-type=module', '--eval', text], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const exited = once(child, 'exit');
    await once(child.stdout, 'data');
    await sleep(37 * (round + 1));
    child.kill('SIGKILL');
    await exited;
    for (const id of await store.files.list()) {
      const { disk } = await store.files.readManifest(id);
      t.is(disk.id, id);
      await t.notThrowsAsync(run('e2fsck', ['-f', '-n', store.files.imagePath(id)]));
    }
  }
  await store.files.prepare();
  const names = await readdir(join(store.path, 'disks'));
  t.true(names.every((name) => name.startsWith('dsk-')));
});
