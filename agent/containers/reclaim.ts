import { mkdir, readdir, rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';
import { paths } from '../system/paths.ts';
import { unmountLeftover } from '../disks/disk-mount.ts';
import { mountsBelow } from '../system/mount-table.ts';
import type { HostGroups } from '../system/helper-group.ts';
import type { Journal } from '../journal/journal.ts';
import { removeCgroups } from '../system/cgroup.ts';
import { reclaimScratch } from './scratch.ts';

/**
 * Removes what a former agent of this data directory left on the host. No exec outlives its agent,
 * so everything with this host's names is a leftover, and its processes have been killed already
 * (endFormerProcesses). Containers go first, since they use the mounts; disks last. Disk data is
 * never touched. No step waits for a disk's storage longer than a detach may take.
 */
export async function reclaim(
  dataDir: string,
  { cgroups, cgroupParent }: HostGroups,
  journal: Journal,
  log: Logger,
): Promise<void> {
  for (const exec of await journal.execs()) {
    log.warn({ ...exec, execId: exec.id }, 'reclaim:execLost');
  }
  const { runcRoot, containers, mounts, heldDisks: held } = paths;
  for (const path of [runcRoot, containers, mounts, held].map((place) => place(dataDir))) {
    await mkdir(path, { recursive: true, mode: 0o700 });
  }
  for (const id of await readdir(paths.runcRoot(dataDir))) {
    log.warn({ containerId: id }, 'reclaim:container');
    // Only runc's state is removed here: the processes are gone, and the control groups go below.
    await rm(join(paths.runcRoot(dataDir), id), { recursive: true, force: true });
  }
  for (const id of await readdir(paths.containers(dataDir))) {
    await reclaimScratch(paths.container(dataDir, id));
  }
  await unmountDisks(dataDir, await heldDisks(dataDir, journal), log);
  await removeCgroups(cgroups, cgroupParent);
  for (const exec of await journal.execs()) await journal.endExec(exec.id);
}

/** The mounts of disks that sandboxes of this host mount, or were about to. */
async function heldDisks(dataDir: string, journal: Journal): Promise<ReadonlySet<string>> {
  const rows = await journal.diskHolds.list();
  return new Set(rows.map(({ diskId }) => paths.heldDisk(dataDir, diskId)));
}

async function unmountDisks(
  dataDir: string,
  held: ReadonlySet<string>,
  log: Logger,
): Promise<void> {
  const unmount = async (target: string): Promise<void> => {
    log.warn({ target }, 'reclaim:mount');
    const err = await unmountLeftover(target).then(() => undefined, toError);
    if (err !== undefined) log.error({ target, err }, 'reclaim:unmountFailed');
  };
  const mounted = await mountsBelow(dataDir);
  const left = nested(mounted.filter((target) => !held.has(target)));
  // In parallel: a disk whose storage hangs must not hold up the others.
  await Promise.all(
    left.map(async (targets) => {
      for (const target of targets) await unmount(target);
    }),
  );
  const kept = new Set(mounted.filter((target) => held.has(target)));
  for (const directory of [paths.mounts(dataDir), paths.heldDisks(dataDir)]) {
    await removeMountPoints(directory, kept, log);
  }
}

const isIn = (target: string, other: string): boolean => target.startsWith(`${other}/`);

/** Mount points grouped by their outermost parent, each once, in the order given. */
function nested(targets: readonly string[]): string[][] {
  const each = [...new Set(targets)];
  const outermost = each.filter((target) => !each.some((other) => isIn(target, other)));
  return outermost.map((top) => each.filter((target) => target === top || isIn(target, top)));
}

async function removeMountPoints(
  directory: string,
  kept: ReadonlySet<string>,
  log: Logger,
): Promise<void> {
  for (const name of await readdir(directory)) {
    const target = join(directory, name);
    if (kept.has(target)) continue;
    // Never recursive: anything found below does not belong to the agent.
    await rmdir(target).catch((err: unknown) => log.warn({ target, err }, 'reclaim:removeFailed'));
  }
}
