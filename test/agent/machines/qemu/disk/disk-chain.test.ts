import { chmod, chown, link, mkdir, readdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import {
  addLayer,
  copyDisk,
  dropLayer,
  hasEmptyTop,
  findMergeable,
  prepareDisk,
  readChain,
  removeStrays,
  splitDisk,
  writtenLayers,
} from '../../../../../agent/machines/qemu/disk/disk-chain.ts';
import { interceptFailpoints } from '../../../../../agent/system/failpoint.ts';
import { temporaryDirectory } from '../../../../helpers/temporary.ts';
import { MiB } from '../../../../../shared/units.ts';

const UID = 700_123_457;
const LAYERS_MAX = 96;

interface Place extends AsyncDisposable {
  readonly disks: string;
  readonly base: string;
  readonly path: string;
}

/** A disk with its first layer. */
async function newDisk(): Promise<Place> {
  const directory = await temporaryDirectory();
  const { path } = directory;
  const [base, disks] = [join(path, 'base'), join(path, 'disks')];
  await writeFile(base, Buffer.alloc(MiB));
  await prepareDisk(disks, base, UID);
  return { path, base, disks, [Symbol.asyncDispose]: async () => directory[Symbol.asyncDispose]() };
}

/** Whether the machine of a disk may read and write a layer. */
async function accessOf(
  disks: string,
  layer: string,
): Promise<{ reads: boolean; writes: boolean }> {
  const { uid, mode } = await stat(join(disks, layer));
  const bits = uid === UID ? mode >> 6 : mode;
  return { reads: (bits & 4) !== 0, writes: (bits & 2) !== 0 };
}

for (const [point, isFrozen] of [
  ['before freeze layer', false],
  ['after freeze layer', true],
] as const) {
  test.serial(`a crash ${point} leaves a layer that its machine can read`, async (t) => {
    await using disk = await newDisk();
    const { disks, base } = disk;
    const { shared, fresh } = await splitDisk(disks, base, UID);
    const [first = ''] = shared;
    const copyTo = (name: string): Promise<string[]> =>
      copyDisk(disks, shared, { directory: join(disk.path, name), base, uid: UID + 1 });
    const crash = new Error('a crash');
    interceptFailpoints(async (reached) => {
      if (reached === point) throw crash;
    });
    t.teardown(() => interceptFailpoints(undefined));
    t.is(await t.throwsAsync(copyTo('crashed')), crash);
    interceptFailpoints(undefined);
    t.deepEqual(await accessOf(disks, first), { reads: true, writes: false });
    // Until the layer is root's, it is synced before a pause and moves to the user of another host.
    const written = [...(isFrozen ? [] : [first]), fresh].map((layer) => join(disks, layer));
    t.deepEqual(await writtenLayers(disks), written);
    t.is(await hasEmptyTop(disks), isFrozen);
    await copyTo('copy');
    t.like(await stat(join(disks, first)), { uid: 0, mode: 0o100_444, nlink: 2 });
    t.deepEqual(await writtenLayers(disks), [join(disks, fresh)]);
    t.true(await hasEmptyTop(disks));
  });
}

test('a layer that root has but others may write to is not frozen: it is frozen before it is shared', async (t) => {
  await using disk = await newDisk();
  const { disks, base } = disk;
  const { shared, fresh } = await splitDisk(disks, base, UID);
  const first = join(disks, shared[0] ?? '');
  await chown(first, 0, 0);
  await chmod(first, 0o666);
  t.deepEqual(await writtenLayers(disks), [first, join(disks, fresh)]);
  t.false(await hasEmptyTop(disks));
  await copyDisk(disks, shared, { directory: join(disk.path, 'copy'), base, uid: UID + 1 });
  t.is((await stat(first)).mode & 0o777, 0o444);
  t.deepEqual(await writtenLayers(disks), [join(disks, fresh)]);
});

test('a disk has 96 layers at most; one more is a conflict, and changes nothing', async (t) => {
  await using disk = await newDisk();
  while ((await readChain(disk.disks)).length < LAYERS_MAX) {
    await addLayer(disk.disks, disk.base, UID);
  }
  const before = await readdir(disk.disks);
  const refusal = { code: 'sandbox_start_conflict', message: /96 layers/u };
  await t.throwsAsync(addLayer(disk.disks, disk.base, UID), refusal);
  t.deepEqual(await readdir(disk.disks), before);
});

test('an empty top layer is reused, unless another layer may still be written to', async (t) => {
  await using disk = await newDisk();
  const { disks, base } = disk;
  t.false(await hasEmptyTop(disks)); // The first layer is the disk itself.
  const split = await splitDisk(disks, base, UID);
  t.true(split.isNew);
  t.false(await hasEmptyTop(disks)); // A machine may still write to the one below.
  const directory = join(disk.path, 'copy');
  await copyDisk(disks, split.shared, { directory, base, uid: UID + 1 });
  t.true(await hasEmptyTop(disks));
  t.deepEqual(await splitDisk(disks, base, UID), { ...split, isNew: false });
});

test('only unshared neighbours below the top layer can be merged', async (t) => {
  await using disk = await newDisk();
  const { disks, base } = disk;
  const max = MiB;
  for (let count = 0; count < 4; count += 1) await addLayer(disks, base, UID);
  const [first = '', second = '', third = '', fourth = '', top = ''] = await readChain(disks);
  await mkdir(join(disk.path, 'fork'));
  for (const shared of [first, second]) {
    await link(join(disks, shared), join(disk.path, 'fork', shared));
  }
  t.is(await findMergeable(disks, 1), undefined); // Too large, all of them.
  const found = await findMergeable(disks, max);
  t.deepEqual(found, { chain: [first, second, third, fourth], lower: third, upper: fourth });
  await dropLayer(disks, found as NonNullable<typeof found>);
  t.deepEqual(await readChain(disks), [first, second, third, top]);
  t.is(await findMergeable(disks, max), undefined);
});

test('layer files outside the chain are removed, those of the chain stay', async (t) => {
  await using disk = await newDisk();
  await addLayer(disk.disks, disk.base, UID);
  const before = await readdir(disk.disks);
  await writeFile(join(disk.disks, 'layer-0123456789abcdef.qcow2'), 'stray');
  await removeStrays(disk.disks);
  t.deepEqual(await readdir(disk.disks), before);
});
