import { mkdir, readdir, rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { ignoring, toError } from '../shared/errors.ts';
import type { Logger } from '../shared/log.ts';
import { paths } from './system/paths.ts';
import { mountAgain, unmountLeftover } from './disks/mount.ts';
import { mountsBelow } from './system/mount-table.ts';
import { failpoint } from './system/failpoint.ts';
import type { HostGroups } from './system/helper-group.ts';
import { makeRunDirectory, removeIfEmpty } from './system/run-directory.ts';
import type { Journal } from './system/journal/journal.ts';
import { removeCgroups } from './system/cgroup.ts';
import { reclaimScratch } from './commands/scratch.ts';

/** The agent's two directories (paths.ts). */
export interface AgentDirectories {
  readonly dataDir: string;
  readonly runDir: string;
}

/**
 * Removes what a former agent of this data directory left on the host. No exec outlives its agent,
 * so everything with this host's names is a leftover, and its processes have been killed already
 * (endFormerProcesses). Containers go first, since they use the mounts; disks last. Disk data is
 * never touched. No step waits for a disk's storage longer than a detach may take. An agent of an
 * earlier version mounted disks below the data directory: held ones move to the run directory.
 */
export async function reclaim(
  directories: AgentDirectories,
  { cgroups, cgroupParent }: HostGroups,
  journal: Journal,
  log: Logger,
): Promise<void> {
  for (const exec of await journal.execs()) {
    log.warn({ ...exec, execId: exec.id }, 'reclaim:execLost');
  }
  const { dataDir, runDir } = directories;
  await mkdir(paths.runcRoot(dataDir), { recursive: true, mode: 0o700 });
  await makeRunDirectory(runDir);
  for (const id of await readdir(paths.runcRoot(dataDir))) {
    log.warn({ containerId: id }, 'reclaim:container');
    // Only runc's state is removed here: the processes are gone, and the control groups go below.
    await rm(join(paths.runcRoot(dataDir), id), { recursive: true, force: true });
  }
  for (const directory of [dataDir, runDir]) {
    const ids = await readdir(paths.containers(directory)).catch(ignoring('ENOENT'));
    for (const id of ids ?? []) await reclaimScratch(paths.container(directory, id));
  }
  await unmountDisks(directories, await heldDisks(directories, journal, log), log);
  await removeCgroups(cgroups, cgroupParent);
  for (const exec of await journal.execs()) await journal.endExec(exec.id);
}

/** The mounts of disks that sandboxes of this host mount, or were about to. */
async function heldDisks(
  { dataDir, runDir }: AgentDirectories,
  journal: Journal,
  log: Logger,
): Promise<ReadonlySet<string>> {
  const held = new Set<string>();
  const former = new Set(await mountsBelow(paths.heldDisks(dataDir)));
  const present = new Set(await mountsBelow(paths.heldDisks(runDir)));
  for (const { diskId } of await journal.diskHolds.list()) {
    const [from, to] = [paths.heldDisk(dataDir, diskId), paths.heldDisk(runDir, diskId)];
    held.add(to);
    if (!former.has(from) || present.has(to)) continue;
    try {
      // The NFS servers and containers that use the disk have mounts of their own.
      await failpoint('move held disk', () => mountAgain(from, to));
      present.add(to);
    } catch (error) {
      log.error({ target: from, err: toError(error) }, 'reclaim:moveFailed');
      held.add(from); // The next start tries again; until then the disk stays attached.
    }
  }
  return held;
}

async function unmountDisks(
  { dataDir, runDir }: AgentDirectories,
  held: ReadonlySet<string>,
  log: Logger,
): Promise<void> {
  const unmount = async (target: string): Promise<void> => {
    log.warn({ target }, 'reclaim:mount');
    const err = await unmountLeftover(target).then(() => undefined, toError);
    if (err !== undefined) log.error({ target, err }, 'reclaim:unmountFailed');
  };
  const mounted = [...(await mountsBelow(runDir)), ...(await mountsBelow(dataDir))];
  const left = nested(mounted.filter((target) => !held.has(target)));
  // In parallel: a disk whose storage hangs must not hold up the others.
  await Promise.all(
    left.map(async (targets) => {
      for (const target of targets) await unmount(target);
    }),
  );
  const kept = new Set(mounted.filter((target) => held.has(target)));
  for (const directory of [dataDir, runDir]) {
    await removeMountPoints(paths.mounts(directory), kept, log);
    await removeMountPoints(paths.heldDisks(directory), kept, log);
  }
  for (const part of [paths.containers, paths.mounts, paths.heldDisks]) {
    await removeIfEmpty(part(dataDir));
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
  for (const name of (await readdir(directory).catch(ignoring('ENOENT'))) ?? []) {
    const target = join(directory, name);
    if (kept.has(target)) continue;
    // Never recursive: anything found below does not belong to the agent.
    await rmdir(target).catch((err: unknown) => log.warn({ target, err }, 'reclaim:removeFailed'));
  }
}
