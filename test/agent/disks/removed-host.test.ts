/*
 * The agent of a removed host: it gives up what its predecessor left before it says that the data
 * directory may be emptied. Redis, storage, mounts and processes are real.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createHash } from 'node:crypto';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import { isImageFree, mountAgain, mountImage } from '../../../agent/disks/mount.ts';
import { refuseRemoved } from '../../../agent/disks/removed-host.ts';
import { detectCgroups, removeCgroups, trackingGroup } from '../../../agent/system/cgroup.ts';
import { mountsBelow } from '../../../agent/system/mount-table.ts';
import { paths } from '../../../agent/system/paths.ts';
import { openRunDirectory } from '../../../agent/system/run-directory.ts';
import { run } from '../../../agent/system/spawn.ts';
import { DISK_LIMITS } from '../../../agent/disks/limits.ts';
import { newHostId } from '../../../shared/ids.ts';
import { openDiskHost } from '../../helpers/disk-host.ts';

const log = pino({ level: 'silent' });

const digestOf = async (path: string): Promise<string> =>
  createHash('sha256')
    .update(await readFile(path))
    .digest('hex');

/** A removed host whose former agent was killed: a sandbox holds its disk, and a process runs. */
async function openScene(undo: AsyncDisposableStack) {
  const { place, record, disk, deps } = await openDiskHost(undo);
  const { hostId, dataDir, directory, files, loops } = deps;
  const account = await directory.accounts.create('acme');
  await directory.accounts.restore({ ...account, id: disk.accountId, name: 'owner' });
  await directory.disks.create(record);
  const runDir = await openRunDirectory(hostId);
  const image = files.imagePath(record.id);
  const places = {
    run: paths.heldDisk(runDir, record.id),
    data: paths.heldDisk(dataDir, record.id),
  };
  undo.defer(async () => {
    for (const path of [runDir, dataDir]) {
      for (const target of await mountsBelow(path)) await run('umount', ['-l', target]);
    }
    await rm(runDir, { recursive: true, force: true });
  });
  const lease = await directory.diskLeases.acquire(disk, hostId, DISK_LIMITS.diskLeaseTtlMs);
  if ('heldBy' in lease) throw new Error('the disk has a host');
  await directory.diskLeases.recordAlone(lease);
  await directory.diskLeases.hold(lease);
  await mountImage(image, places.run, loops.firstNumber);
  const cgroupParent = `/berth-test-${hostId}`;
  const cgroups = await detectCgroups();
  const group = trackingGroup(cgroups, `${cgroupParent}/${hostId}/sandboxes/a-machine`);
  await mkdir(group, { recursive: true });
  undo.defer(() => removeCgroups(cgroups, cgroupParent));
  const machine = spawn('sleep', ['600'], { stdio: 'ignore' });
  const ended = once(machine, 'exit');
  undo.defer(async () => {
    machine.kill('SIGKILL');
    await ended;
  });
  await writeFile(join(group, 'cgroup.procs'), String(machine.pid));
  const config = { cgroupParent, dataDir, storageDir: place, sandboxes: undefined };
  return {
    ...{ hostId, disk, directory, image, places, machine, dataDir, runDir },
    /** Does to the directory what `berth host rm` does. */
    async remove(): Promise<void> {
      await directory.diskLeases.breakHold(disk, hostId);
      await directory.hosts.remove(hostId);
    },
    start: () => refuseRemoved({ hostId, config, directory, log }),
  };
}

test('a removed host ends its machines and detaches its disks before it says what to do', async (t) => {
  await using undo = new AsyncDisposableStack();
  const { image, places, machine, directory, disk, ...scene } = await openScene(undo);
  await mountAgain(places.run, places.data); // The place of an earlier version.
  await writeFile(join(places.run, 'file'), 'acknowledged');
  await scene.start();
  t.is(machine.exitCode ?? machine.signalCode, null, 'the host is not removed');
  await scene.remove();
  await t.throwsAsync(scene.start(), {
    message: `${scene.hostId} was removed from its cluster: empty AGENT_DATA_DIR, and join as a new host`,
  });
  t.is(machine.signalCode ?? (await once(machine, 'exit'))[1], 'SIGKILL');
  t.deepEqual([await mountsBelow(scene.dataDir), await mountsBelow(scene.runDir)], [[], []]);
  t.true(await isImageFree(image));
  await rm(scene.dataDir, { recursive: true });
  const next = await directory.diskLeases.acquire(disk, newHostId(), DISK_LIMITS.diskLeaseTtlMs);
  t.deepEqual('formerHosts' in next && next.formerHosts, [], 'nobody has to be fenced');
  await mountImage(image, places.run, 0);
  t.is(await readFile(join(places.run, 'file'), 'utf8'), 'acknowledged');
});

test('a removed host writes nothing to a disk that another host has by now', async (t) => {
  await using undo = new AsyncDisposableStack();
  const { image, places, directory, disk, ...scene } = await openScene(undo);
  await writeFile(join(places.run, 'first'), 'on the storage');
  await run('sync', ['--file-system', places.run]);
  const before = await digestOf(image);
  await writeFile(join(places.run, 'file'), 'not on the storage yet');
  await scene.remove();
  const other = await directory.diskLeases.acquire(disk, newHostId(), DISK_LIMITS.diskLeaseTtlMs);
  t.true('epoch' in other);
  await mountAgain(places.run, places.data);
  const said =
    /empty AGENT_DATA_DIR, and join as a new host; restart this machine to release dsk-/u;
  for (let starts = 0; starts < 2; starts += 1) {
    await t.throwsAsync(scene.start(), { message: said });
    t.is(await digestOf(image), before);
    t.deepEqual(await mountsBelow(scene.dataDir), []);
  }
  await t.throwsAsync(writeFile(join(places.run, 'later'), ''), { code: 'EIO' });
  t.deepEqual(await mountsBelow(scene.runDir), [places.run]);
  t.true('epoch' in other && (await directory.diskLeases.renew(other, DISK_LIMITS.diskLeaseTtlMs)));
});

test('a removed host does not have its operator delete the storage of the others', async (t) => {
  await using undo = new AsyncDisposableStack();
  const { hostId, dataDir, ...scene } = await openScene(undo);
  await scene.remove();
  const storageDir = join(dataDir, 'storage');
  const config = { cgroupParent: '/berth-test-none', dataDir, storageDir, sandboxes: undefined };
  await t.throwsAsync(refuseRemoved({ hostId, config, directory: scene.directory, log }), {
    message: `${hostId} was removed from its cluster: empty AGENT_DATA_DIR except ${storageDir}, which other hosts use, and join as a new host`,
  });
});
