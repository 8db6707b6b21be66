import { randomUUID } from 'node:crypto';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import test from 'ava';
import { Container, type ContainerMount } from '../../agent/runtimes/container/container.ts';
import { openContainers } from '../helpers/containers.ts';

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
    const run = container.run('sleep 60', mountsOf(disk, 32));
    const failed = t.throwsAsync(run);
    await pause(delayMs);
    await container.kill();
    await failed;
    await container.gone;
  }
  t.false((await readFile('/proc/self/mountinfo', 'utf8')).includes(host.containersDir));
});
