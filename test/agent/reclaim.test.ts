/* Mounts that a former agent left: the next one clears them away at its start. */
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import { reclaim } from '../../agent/reclaim.ts';
import { isImageFree, mountAgain, mountImage } from '../../agent/disks/mount.ts';
import { Journal } from '../../agent/system/journal/journal.ts';
import { MountFlag, native } from '../../agent/native/native.ts';
import { detectCgroups } from '../../agent/system/cgroup.ts';
import { mountsBelow } from '../../agent/system/mount-table.ts';
import { paths } from '../../agent/system/paths.ts';
import { run } from '../../agent/system/spawn.ts';
import { loopsOn } from '../helpers/loops.ts';
import { FIRST_LOOP } from '../helpers/mounted-disk.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

const DISK = 'dsk-0123456789abcdef';
const HELD = 'dsk-fedcba9876543210';
const MOUNT_PARENTS = new Set(['containers', 'held', 'mounts']);

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

/** Where an agent has mounted disks: in its run directory, in earlier versions with its data. */
type Place = 'dataDir' | 'runDir';

const clears = test.macro(async (t, place: Place) => {
  await using directory = await temporaryDirectory();
  const { path } = directory;
  const directories = { dataDir: join(path, 'data'), runDir: join(path, 'run') };
  const { dataDir, runDir } = directories;
  const [image, heldImage] = [join(path, 'image.ext4'), join(path, 'held.ext4')];
  const mount = paths.mount(directories[place], DISK);
  await using undo = new AsyncDisposableStack();
  undo.defer(async () => {
    for (const target of await mountsBelow(path)) await run('umount', ['-l', target]);
  });
  await mountNewDisk(image, mount);
  await mountNewDisk(heldImage, paths.heldDisk(directories[place], HELD));
  await writeFile(join(paths.heldDisk(directories[place], HELD), 'file'), 'kept');
  await mountMemory(paths.nfsPrograms(dataDir));
  for (let starts = 0; starts < 2; starts += 1) await leaveServerMounts(dataDir, mount);
  await run('umount', [mount]);
  t.false(await isImageFree(image));
  const journal = await Journal.open(paths.journal(dataDir));
  undo.defer(() => journal.close());
  await journal.diskHolds.add({ diskId: HELD, sandboxId: 'a-sandbox', accountId: 'an-account' });
  const faults: string[] = [];
  const log = pino({ level: 'error' }, { write: (line: string) => faults.push(line) });
  const cgroups = await detectCgroups();

  await reclaim(directories, { cgroups, cgroupParent: '/berth-test-none' }, journal, log);

  const held = paths.heldDisk(runDir, HELD);
  t.deepEqual(await mountsBelow(path), [held]);
  t.is(await readFile(join(held, 'file'), 'utf8'), 'kept');
  t.false(await isImageFree(heldImage));
  t.deepEqual(
    (await readdir(dataDir)).filter((name) => MOUNT_PARENTS.has(name)),
    [],
  );
  t.true(await isImageFree(image));
  t.deepEqual(loopsOn(image), []);
  t.deepEqual(faults, []);
});
test(
  'a disk that failed starts left mounted is free, one that a sandbox has is kept',
  clears,
  'runDir',
);
test('disks held by the version before move out of the data directory', clears, 'dataDir');
