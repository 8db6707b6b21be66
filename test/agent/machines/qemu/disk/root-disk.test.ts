import { stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { emptyLayer, prepareRootDisk } from '../../../../../agent/machines/qemu/disk/root-disk.ts';
import { run } from '../../../../../agent/system/spawn.ts';
import { temporaryDirectory } from '../../../../helpers/temporary.ts';
import { GiB } from '../../../../../shared/units.ts';

const UID = 700_123_456;

test('a layer is a valid qcow2 image of the size of its base, and belongs to its user', async (t) => {
  await using directory = await temporaryDirectory();
  const base = join(directory.path, 'base');
  await writeFile(base, '');
  await run('truncate', ['--size', '32G', base]);
  const disks = join(directory.path, 'disks');
  await prepareRootDisk(disks, 'root.qcow2', base, UID);
  const path = join(disks, 'root.qcow2');
  await run('qemu-img', ['check', '-f', 'qcow2', path]);
  const info: unknown = JSON.parse(
    await run('qemu-img', ['info', '-f', 'qcow2', '--output=json', path]),
  );
  t.like(info, { 'virtual-size': 32 * GiB, format: 'qcow2' });
  t.is((info as Record<string, unknown>)['backing-filename'], undefined);
  const { uid, mode } = await stat(path);
  t.deepEqual([uid, mode & 0o777], [UID, 0o600]);
});

test('an existing layer is left alone', async (t) => {
  await using directory = await temporaryDirectory();
  const base = join(directory.path, 'base');
  await writeFile(base, 'x'.repeat(4096));
  const path = join(directory.path, 'root.qcow2');
  await writeFile(path, 'written to');
  await prepareRootDisk(directory.path, 'root.qcow2', base, UID);
  t.is((await stat(path)).size, 'written to'.length);
});

test('a layer can be written to over the whole size of its base', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'layer');
  await writeFile(path, emptyLayer(4 * GiB + 512));
  const write = ['-f', 'qcow2', '-c', 'write -P 7 4294967296 512', '-c', 'write -P 9 0 64k', path];
  await run('qemu-io', write);
  const read = ['-f', 'qcow2', '-c', 'read -P 7 4294967296 512', '-c', 'read -P 9 0 64k', path];
  t.notRegex(await run('qemu-io', read), /failed/u);
  await run('qemu-img', ['check', '-f', 'qcow2', path]);
});

test('a disk that needs more than one cluster of mappings is refused', (t) => {
  t.throws(() => emptyLayer(8192 * GiB), { instanceOf: RangeError });
});
