import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { SYSTEM_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import { guardPath } from '../native/native.ts';
import { type CgroupHost, killBelow, trackingGroup } from './cgroup.ts';
import { spawnDetached } from './spawn.ts';
import { started } from './started.ts';

/** How the host's control groups are laid out, and where this agent's are. */
export interface HostGroups {
  readonly cgroups: CgroupHost;
  /** The parent group of this agent; containers' groups are direct children of it. */
  readonly cgroupParent: string;
}

/** The child group that holds the groups of virtual machines, which outlive their agent. */
export const MACHINES_GROUP = 'sandboxes';
/** The group of the helpers of disks on buckets, which last as long as their disks are mounted. */
export const BUCKETS_GROUP = 'buckets';
/** The group of the daemons of the host's network, which outlive their agent, too. */
export const NETWORK_GROUP = 'network';

/**
 * Kills the processes that a former agent of this host left: helpers, its guard, `runc`,
 * containers. Runs first at the agent's start, since nothing else is safe while they run. Processes
 * that hang in the kernel are left behind: they have been killed, so they can do nothing but end.
 */
export async function endFormerProcesses(
  { cgroups, cgroupParent }: HostGroups,
  log: Logger,
): Promise<void> {
  const withinMs = SYSTEM_LIMITS.formerProcessesMsMax;
  const except = [MACHINES_GROUP, NETWORK_GROUP, BUCKETS_GROUP];
  const pids = await killBelow(cgroups, cgroupParent, { except, withinMs });
  if (pids.length > 0) log.error({ pids }, 'reclaim:processesHang');
}

/**
 * Creates the control group for the programs that this agent starts. Each agent has its own, so
 * that a program which a dying agent is about to start finds its group removed, and ends.
 * @returns its cgroup.procs
 */
export async function makeHelperGroup({ cgroups, cgroupParent }: HostGroups): Promise<string> {
  const name = `helpers-${randomBytes(6).toString('hex')}`;
  const group = trackingGroup(cgroups, `${cgroupParent}/${name}`);
  await mkdir(group, { recursive: true });
  return join(group, 'cgroup.procs');
}

/**
 * Starts the guard, which unmounts this agent's disks when the agent is gone (guard.c). The guard
 * joins the helpers' group, so the next agent ends it before mounting anything.
 * @param directories of the agent, as the kernel shows them for mounts
 * @returns stops the guard; call it once nothing is mounted any more
 */
export async function startMountGuard(
  group: string,
  directories: readonly string[],
): Promise<() => Promise<void>> {
  const guard = await started(
    spawnDetached(guardPath, [group, ...directories], { stdio: ['pipe', 'pipe', 'ignore'] }),
  );
  const { stdin, stdout } = guard;
  if (stdin === null || stdout === null) throw new Error('the guard has no pipes');
  const ended = once(guard, 'exit');
  ended.catch(() => undefined);
  const isReady = await Promise.race([
    once(stdout, 'data').then(() => true),
    ended.then(() => false),
  ]);
  if (!isReady) throw new Error('the guard that unmounts disks did not start');
  return async () => {
    stdin.end();
    await settledWithin(ended, SYSTEM_LIMITS.guardEndMsMax);
  };
}
