import { randomUUID } from 'node:crypto';
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import test from 'ava';
import { CAPABILITIES } from '../../agent/runtimes/container/bundle.ts';
import { detectCgroups, removeCgroups } from '../../agent/runtimes/container/cgroup.ts';
import {
  Container,
  type ContainerHost,
  type ContainerMount,
} from '../../agent/runtimes/container/container.ts';
import { readSeccomp } from '../../agent/runtimes/container/seccomp.ts';

const MiB = 1024 ** 2;

async function openHost(): Promise<{ host: ContainerHost; close: () => Promise<void> }> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-test-'));
  const containersDir = join(directory, 'containers');
  await mkdir(containersDir);
  const cgroups = await detectCgroups();
  const cgroupParent = `/berth-test-${randomUUID().slice(0, 8)}/host`;
  const host: ContainerHost = {
    containersDir,
    runcRoot: join(directory, 'runc'),
    imageDir: process.env['DEFAULT_IMAGE_DIR'] ?? '',
    mountAliases: [],
    limits: { memoryBytes: 256 * MiB, processes: 64, cpus: 1, scratchBytes: 64 * MiB },
    cgroups,
    cgroupParent,
    seccomp: await readSeccomp('/usr/share/containers/seccomp.json', CAPABILITIES),
  };
  return {
    host,
    async close() {
      await removeCgroups(cgroups, cgroupParent);
      await rm(directory, { recursive: true });
    },
  };
}

const mountsOf = (diskPath: string, count: number): ContainerMount[] =>
  Array.from({ length: count }, (_, i) => ({
    diskPath,
    subdirectory: '',
    path: `disk-${i}`,
    readOnly: false,
    dataOnly: false,
  }));

test('a container that is killed at any moment of its run ends, and leaves nothing', async (t) => {
  const { host, close } = await openHost();
  const disk = join(host.containersDir, '..', 'disk');
  await mkdir(disk);
  try {
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
  } finally {
    await close();
  }
});
