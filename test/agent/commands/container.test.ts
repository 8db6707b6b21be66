import { randomUUID } from 'node:crypto';
import { mkdir, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { Container, type ContainerMount } from '../../../agent/commands/container.ts';
import { trackingGroup } from '../../../agent/system/cgroup.ts';
import { openContainers } from '../../helpers/containers.ts';

const mountsOf = (diskPath: string, count: number): ContainerMount[] =>
  Array.from({ length: count }, (_, i) => ({
    diskPath,
    subdirectory: '',
    path: `disk-${i}`,
    readOnly: false,
    dataOnly: false,
  }));

test('a container that is killed at any moment of its run ends, and leaves nothing', async (t) => {
  await using containers = await openContainers();
  const { host, directory } = containers;
  const disk = join(directory, 'disk');
  await mkdir(disk);
  for (const delayMs of [0, 0, 1, 2, 4, 8, 16, 32]) {
    const container = new Container(host, randomUUID());
    await container.start();
    // Many mounts: runc may end while they are made.
    const run = container.run(() => 'sleep 60', mountsOf(disk, 32));
    const failed = t.throwsAsync(run);
    await sleep(delayMs);
    await container.kill();
    await failed;
    await container.gone;
  }
  t.false((await readFile('/proc/self/mountinfo', 'utf8')).includes(host.containersDir));
});

/** The processes whose command line has all of these words. */
async function processesWith(...words: string[]): Promise<number[]> {
  const found: number[] = [];
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/u.test(pid)) continue;
    const line = await readFile(join('/proc', pid, 'cmdline'), 'utf8').catch(() => '');
    if (words.every((word) => line.includes(word))) found.push(Number(pid));
  }
  return found;
}

test('nothing is left of a container whose runc is killed, whether it waits or runs', async (t) => {
  await using containers = await openContainers();
  const { host } = containers;
  for (const isRunning of [false, true]) {
    const container = new Container(host, randomUUID());
    await container.start();
    const failed = isRunning ? t.throwsAsync(container.run(() => 'sleep 60', [])) : undefined;
    const runcs = await processesWith('runc', 'run', container.id);
    t.true(runcs.length > 0);
    const group = trackingGroup(host.cgroups, `${host.cgroupParent}/${container.id}`);
    t.not(await readFile(join(group, 'cgroup.procs'), 'utf8'), '');
    for (const pid of runcs) process.kill(pid, 'SIGKILL');
    if (isRunning) await container.kill();
    await failed;
    await container.gone;
    t.deepEqual(await readdir(host.runcRoot), []);
    await t.throwsAsync(readdir(group), { code: 'ENOENT' }); // With a process in it it would stay.
  }
});
