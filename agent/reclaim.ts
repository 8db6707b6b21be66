import { mkdir, readdir, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from '../shared/log.ts';
import { paths } from './config.ts';
import { mountsBelow } from './disks/mount-table.ts';
import type { Journal } from './journal/journal.ts';
import { native, UnmountFlag } from './native/native.ts';
import { type CgroupHost, removeCgroups } from './runtimes/container/cgroup.ts';
import { deleteContainer } from './runtimes/container/container.ts';
import { reclaimScratch } from './runtimes/container/scratch.ts';

/**
 * Clears away what a former agent of this data directory left on the host. No exec outlives its
 * agent, so whatever carries this host's names is a leftover: containers first, since they use the
 * mounts; disks last. Disk data is never touched.
 */
export async function reclaim(
  dataDir: string,
  { cgroups, cgroupParent }: { cgroups: CgroupHost; cgroupParent: string },
  journal: Journal,
  log: Logger,
): Promise<void> {
  for (const exec of await journal.execs()) {
    log.warn({ ...exec, execId: exec.id }, 'reclaim:execLost');
  }
  for (const path of [paths.runcRoot(dataDir), paths.containers(dataDir), paths.mounts(dataDir)]) {
    await mkdir(path, { recursive: true, mode: 0o700 });
  }
  for (const id of await readdir(paths.runcRoot(dataDir))) {
    log.warn({ containerId: id }, 'reclaim:container');
    await deleteContainer(paths.runcRoot(dataDir), id);
  }
  for (const id of await readdir(paths.containers(dataDir))) {
    await reclaimScratch(paths.container(dataDir, id));
  }
  for (const target of await mountsBelow(dataDir)) {
    log.warn({ target }, 'reclaim:mount');
    await native.unmount(target, UnmountFlag.detach);
  }
  for (const name of await readdir(paths.mounts(dataDir))) {
    const target = join(paths.mounts(dataDir), name);
    // Never recursive: whatever may lie below is not the agent's.
    await rmdir(target).catch((err: unknown) => log.warn({ target, err }, 'reclaim:notEmpty'));
  }
  await removeCgroups(cgroups, cgroupParent);
  for (const exec of await journal.execs()) await journal.endExec(exec.id);
}
