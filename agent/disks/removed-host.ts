/* The agent of a removed host clears the machine before it says what the operator may do. */
import { realpath } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import type { AcquiredLease } from '../../shared/directory/disk-leases.ts';
import type { Directory } from '../../shared/directory/directory.ts';
import { toError } from '../../shared/errors.ts';
import { diskIdPattern } from '../../shared/ids.ts';
import { DISK_LIMITS } from './limits.ts';
import { SYSTEM_LIMITS } from '../system/limits.ts';
import type { Logger } from '../../shared/log.ts';
import { abandonMount, isImageFree, mountAgain, unmountLeftover } from './mount.ts';
import { LoopDevices } from './loop-devices.ts';
import { imagePathOf } from './disk-files.ts';
import { detectCgroups, killGroup } from '../system/cgroup.ts';
import { mountsBelow } from '../system/mount-table.ts';
import { paths } from '../system/paths.ts';
import { openRunDirectory, removeRunDirectory } from '../system/run-directory.ts';

interface RemovedHost {
  readonly hostId: string;
  readonly config: {
    readonly cgroupParent: string;
    readonly dataDir: string;
    readonly storageDir: string;
    readonly sandboxes: { readonly shared: { readonly directory: string } | undefined } | undefined;
  };
  readonly directory: Pick<Directory, 'accounts' | 'diskLeases' | 'disks' | 'hosts'>;
  readonly log: Logger;
}

/** A disk that is mounted here, with every place where it is. */
interface MountedDisk {
  readonly diskId: string;
  readonly targets: readonly string[];
  /** Undefined when another host has, or had, the disk since: nothing may be written to it. */
  readonly lease: AcquiredLease | undefined;
}

/** The outcome of a clean-up. */
interface Cleared {
  /** Things that could not be done. */
  readonly problems: readonly string[];
  /** Disks of other hosts, to which nothing is written, and which stay attached. */
  readonly lost: readonly string[];
}

/**
 * Refuses to start on a host that an operator has removed: its disks and sandboxes are others' now.
 * The host's machines are ended and its disks detached first, so that the data directory can be
 * emptied.
 * @throws Error that says what to do next
 */
export async function refuseRemoved(parts: RemovedHost): Promise<void> {
  const { hostId, directory, config } = parts;
  if (!(await directory.hosts.isRemoved(hostId))) return;
  const { problems, lost } = await clear(parts);
  const removed = `${hostId} was removed from its cluster`;
  if (problems.length > 0) {
    const next = 'restart this machine, then start the agent again, and empty nothing before';
    throw new Error(`${removed}, and ${problems.join('; ')}: ${next}`);
  }
  const next = `empty AGENT_DATA_DIR${exceptionOf(config)}, and join as a new host`;
  const restart = `restart this machine to release ${lost.join(', ')}, which another host has: nothing is written to it here`;
  throw new Error(`${removed}: ${next}${lost.length === 0 ? '' : `; ${restart}`}`);
}

/** Storage may have been put below the data directory. */
function exceptionOf({ dataDir, storageDir, sandboxes }: RemovedHost['config']): string {
  const places = [storageDir, sandboxes?.shared?.directory].filter((path) => path !== undefined);
  const kept = places.filter((path) => path.startsWith(`${dataDir}/`));
  return kept.length === 0 ? '' : ` except ${kept.join(' and ')}, which other hosts use`;
}

async function clear({ hostId, config, directory, log }: RemovedHost): Promise<Cleared> {
  const cgroupParent = `${config.cgroupParent}/${hostId}`;
  const hung = await killGroup(
    await detectCgroups(),
    cgroupParent,
    SYSTEM_LIMITS.formerProcessesMsMax,
  );
  const runDir = await openRunDirectory(hostId);
  const places = [runDir, await realpath(config.dataDir)];
  const mounted = (await Promise.all(places.map(mountsBelow))).flat();
  const disks = await leaseDisks(diskTargets(places, mounted), { hostId, directory });
  const attempt = async (target: string, work: Promise<void>): Promise<boolean> => {
    const err = await work.then(() => undefined, toError);
    if (err !== undefined) log.error({ target, err }, 'host:unmountFailed');
    return err === undefined;
  };
  const lost = disks.filter(({ lease }) => lease === undefined);
  const kept = new Set(lost.map(({ diskId }) => paths.heldDisk(runDir, diskId)));
  const spared = new Set<string>();
  // First, since a command's mount of the same disk is one of the others.
  for (const disk of lost) {
    const isAbandoned = await attempt(disk.diskId, abandon(disk, runDir, mounted));
    if (!isAbandoned) for (const target of disk.targets) spared.add(target);
  }
  const isDisk = new Set(disks.flatMap(({ targets }) => targets));
  for (const target of mounted) {
    if (!isDisk.has(target)) await attempt(target, unmountLeftover(target));
  }
  await Promise.all(
    disks.map(async (disk) => {
      for (const target of disk.targets) {
        if (kept.has(target) || spared.has(target)) continue;
        await attempt(target, unmountLeftover(target));
      }
      await release(disk, { config, directory, log });
    }),
  );
  await new LoopDevices(hostId, log).close();
  for (const place of places) await removeRunDirectory(place);
  const left = (await Promise.all(places.map(mountsBelow))).flat();
  return {
    problems: [
      ...hung.map((pid) => `process ${pid} of it does not end`),
      ...left.filter((at) => !kept.has(at) || spared.has(at)).map((at) => `${at} is still mounted`),
    ],
    lost: lost.map(({ diskId }) => diskId),
  };
}

/**
 * Has nothing more written to a disk, and keeps it mounted at its place outside of the data
 * directory: with its last mount, a kernel such as Debian 12's writes its superblock.
 */
async function abandon(
  { diskId, targets }: MountedDisk,
  runDir: string,
  mounted: readonly string[],
): Promise<void> {
  const kept = paths.heldDisk(runDir, diskId);
  const [first = kept] = targets;
  if (!mounted.includes(kept)) await mountAgain(first, kept);
  await abandonMount(kept);
}

/** The mounted disks by id; in the order in which they can be unmounted. */
function diskTargets(places: readonly string[], mounted: readonly string[]): Map<string, string[]> {
  const parents = new Set(places.flatMap((at) => [paths.mounts(at), paths.heldDisks(at)]));
  const isDisk = (target: string): boolean =>
    parents.has(dirname(target)) && new RegExp(diskIdPattern, 'u').test(basename(target));
  return Map.groupBy(mounted.filter(isDisk), (target) => basename(target));
}

/**
 * Takes the lease of each disk once more. A host that lost the lease in between, or that is not the
 * only one which may have the disk attached, may not write back: that would be over the others'
 * data.
 */
async function leaseDisks(
  found: ReadonlyMap<string, string[]>,
  { hostId, directory }: Pick<RemovedHost, 'hostId' | 'directory'>,
): Promise<MountedDisk[]> {
  const owners = await ownersOf([...found.keys()], directory);
  return Promise.all(
    [...found].map(async ([diskId, targets]) => {
      const accountId = owners.get(diskId);
      const lease =
        accountId === undefined
          ? undefined // The disk was deleted.
          : await directory.diskLeases.acquireFormer(
              { accountId, diskId },
              hostId,
              DISK_LIMITS.diskLeaseTtlMs,
            );
      return { diskId, targets, lease: lease?.formerHosts.length === 0 ? lease : undefined };
    }),
  );
}

/** The accounts that have the disks. */
async function ownersOf(
  diskIds: readonly string[],
  { accounts, disks }: RemovedHost['directory'],
): Promise<Map<string, string>> {
  const owners = new Map<string, string>();
  if (diskIds.length === 0) return owners;
  for (const { id } of await accounts.list()) {
    for (const diskId of diskIds) {
      if ((await disks.get(id, diskId)) !== undefined) owners.set(diskId, id);
    }
  }
  return owners;
}

/** Lets other hosts have a disk that is detached. If that fails, the lease expires. */
async function release(
  { diskId, lease }: MountedDisk,
  { config, directory, log }: Pick<RemovedHost, 'config' | 'directory' | 'log'>,
): Promise<void> {
  if (lease === undefined) return log.warn({ diskId }, 'disk:abandoned');
  const isFree = await isImageFree(imagePathOf(config.storageDir, diskId)).catch(() => false);
  log.info({ diskId, isFree }, 'disk:detached');
  if (isFree) await directory.diskLeases.release(lease);
}
