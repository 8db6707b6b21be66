import { join } from 'node:path';
import { AppError } from '../../../shared/errors.ts';
import { LIMITS } from '../../../shared/limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SeccompProfile } from '../oci/seccomp.ts';
import { MachineCgroup } from '../shim/machine-cgroup.ts';
import type { MachineKind } from '../shim/machine-end.ts';
import { directoryOf } from '../shim/sandbox-directory.ts';
import type { CgroupHost } from '../../system/cgroup.ts';

/** Parts that all containers of sandboxes on this host share. */
export interface RuncHost {
  readonly sandboxesDir: string;
  /** The tree that the disks of new sandboxes begin with. */
  readonly imageDir: string;
  /** The file system that new disks are copied from. */
  readonly emptyDisk: string;
  /** The first loop device number that belongs to this host. */
  readonly firstLoop: number;
  /** The first of the users that sandboxes have, by which the registry knows them. */
  readonly uidBase: number;
  /** The first id of the host that a container has as its own. */
  readonly idBase: number;
  /** Slots have a link for a container; without it, containers have no interface but loopback. */
  readonly hasNetwork: boolean;
  readonly cgroups: CgroupHost;
  /** Each container has its groups below this one. */
  readonly cgroupParent: string;
  readonly seccomp: SeccompProfile;
  readonly hiddenPaths: readonly string[];
  readonly bootTimeoutMs: number;
  readonly log: Logger;
}

/** Its first process is the guest agent, which ends well when it has shut down. */
export const CONTAINER: MachineKind = { noun: 'container', exitTellsShutdown: true };

/**
 * The paths of a sandbox's files. `disk` outlives its containers; `run` lasts as long as a
 * container, which a pause does not end.
 */
export function pathsOf(host: Pick<RuncHost, 'sandboxesDir'>, vmId: string) {
  const directory = directoryOf(host, vmId);
  const run = join(directory, 'run');
  return {
    directory,
    disk: join(directory, 'disk'),
    run,
    /** OCI configuration. */
    config: join(run, 'config.json'),
    runcRoot: join(run, 'runc'),
    runcLog: join(run, 'runc.log'),
    pid: join(run, 'pid'),
    guest: join(run, 'guest'),
    /** Mounted at `/dev` inside; seen only by the container. */
    devices: join(run, 'dev'),
  } as const;
}

export const cgroupOf = (
  { cgroups, cgroupParent }: Pick<RuncHost, 'cgroups' | 'cgroupParent'>,
  vmId: string,
): MachineCgroup => new MachineCgroup(cgroups, `${cgroupParent}/${vmId}`);

/**
 * The first host id of a sandbox's container, which is root inside. No other sandbox of the host
 * has ids of its range.
 * @param uid the sandbox's user, as the registry gave it
 * @throws AppError `no_capacity` when there are more sandboxes than ranges
 */
export function firstIdOf({ uidBase, idBase }: RuncHost, uid: number): number {
  const index = uid - uidBase;
  if (index >= LIMITS.containerSandboxesMax) {
    const message = `a host has at most ${LIMITS.containerSandboxesMax} sandboxes`;
    throw new AppError('no_capacity', message);
  }
  return idBase + index * LIMITS.idsPerContainer;
}
