/* Mounts that a former agent left: the next one clears them away at its start. */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import { reclaim } from '../../../agent/containers/reclaim.ts';
import { isImageFree, mountAgain, mountImage } from '../../../agent/disks/disk-mount.ts';
import { Journal } from '../../../agent/journal/journal.ts';
import { MountFlag, native } from '../../../agent/native/native.ts';
import { detectCgroups } from '../../../agent/system/cgroup.ts';
import { mountsBelow } from '../../../agent/system/mount-table.ts';
import { paths } from '../../../agent/system/paths.ts';
import { run } from '../../../agent/system/spawn.ts';
import { loopsOn } from '../../helpers/loops.ts';
import { FIRST_LOOP } from '../../helpers/mounted-disk.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

const DISK = 'dsk-0123456789abcdef';
const HELD = 'dsk-fedcba9876543210';

async function mountMemory(directory: string): Promise<void> {
  await mkdir(directory, { recursive: true });
  await native.mount('tmpfs', directory, 'tmpfs', MountFlag.nosuid, 'size=1m');
}

/**
 * The mounts that a server of disks left on a host with shared mounts, before its root was private:
 * it failed to start, and what it had mounted on its root was mounted on the host's as well.
 */
async function leaveServerMounts(dataDir: string, disk: string): Promise<void> {
  const programs = paths.nfsPrograms(dataDir);
  for (const name of ['run', 'dev', 'disks']) await mountMemory(join(programs, name));
  await mountAgain(disk, join(programs, 'disks', DISK));
}

async function mountNewDisk(image: string, target: string): Promise<void> {
  await writeFile(image, '');
  await run('mke2fs', ['-q', '-t', 'ext4', '-F', image, '16M']);
  await mountImage(image, target, FIRST_LOOP);
}

test('a disk that failed starts left mounted is free, one that a sandbox has is kept', async (t) => {
  await using directory = await temporaryDirectory();
  const { path: dataDir } = directory;
  const [image, heldImage] = [join(dataDir, 'image.ext4'), join(dataDir, 'held.ext4')];
  const held = paths.heldDisk(dataDir, HELD);
  await using undo = new AsyncDisposableStack();
  undo.defer(async () => {
    for (const target of await mountsBelow(dataDir)) await run('umount', ['-l', target]);
  });
  await mountNewDisk(image, paths.mount(dataDir, DISK));
  await mountNewDisk(heldImage, held);
  await mountMemory(paths.nfsPrograms(dataDir));
  for (let starts = 0; starts < 2; starts += 1) {
    await leaveServerMounts(dataDir, paths.mount(dataDir, DISK));
  }
  await run('umount', [paths.mount(dataDir, DISK)]);
  t.false(await isImageFree(image));
  const journal = await Journal.open(paths.journal(dataDir));
  undo.defer(() => journal.close());
  await journal.diskHolds.add({ diskId: HELD, sandboxId: 'a-sandbox', accountId: 'an-account' });
  const faults: string[] = [];
  const log = pino({ level: 'error' }, { write: (line: string) => faults.push(line) });
  const cgroups = await detectCgroups();

  await reclaim(dataDir, { cgroups, cgroupParent: '/berth-test-none' }, journal, log);

  t.deepEqual(await mountsBelow(dataDir), [held]);
  t.true(await isImageFree(image));
  t.deepEqual(loopsOn(image), []);
  t.deepEqual(faults, []);
});
