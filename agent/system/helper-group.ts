import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { LIMITS } from '../../shared/limits.ts';
import type { Logger } from '../../shared/log.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import { guardPath } from '../native/native.ts';
import { type CgroupHost, killBelow, trackingGroup } from './cgroup.ts';
import { started } from './started.ts';

/** Where this host's control groups lie. */
export interface HostGroups {
  readonly cgroups: CgroupHost;
  /** Containers have theirs right below it. */
  readonly cgroupParent: string;
}

/** Below this one, of the host's, are those of virtual machines, which outlive their agent. */
export const MACHINES_GROUP = 'sandboxes';

/**
 * Ends what a former agent of this host started and left: helpers, its guard, `runc`, containers.
 * After it none of them does anything more, so this comes before everything else at the start. Those
 * that hang in the kernel are left behind: killed as they are, they can only end.
 */
export async function endFormerProcesses(
  { cgroups, cgroupParent }: HostGroups,
  log: Logger,
): Promise<void> {
  const withinMs = LIMITS.formerProcessesMsMax;
  const except = [MACHINES_GROUP];
  const pids = await killBelow(cgroups, cgroupParent, { except, withinMs });
  if (pids.length > 0) log.error({ pids }, 'reclaim:processesHang');
}

/**
 * Makes the control group for the programs that this agent starts. Each agent has one of its own:
 * what an agent that has just died was about to start finds its group removed.
 * @returns its cgroup.procs
 */
export async function makeHelperGroup({ cgroups, cgroupParent }: HostGroups): Promise<string> {
  const name = `helpers-${randomBytes(6).toString('hex')}`;
  const group = trackingGroup(cgroups, `${cgroupParent}/${name}`);
  await mkdir(group, { recursive: true });
  return join(group, 'cgroup.procs');
}

/**
 * Starts the process that unmounts this agent's disks when the agent is gone (guard.c). It is in the
 * group of the helpers, too: the next agent ends it before it mounts anything.
 * @returns ends the guard, once nothing is mounted any more
 */
export async function startMountGuard(
  group: string,
  dataDir: string,
): Promise<() => Promise<void>> {
  const guard = await started(
    spawn(guardPath, [group, dataDir], { stdio: ['pipe', 'pipe', 'ignore'], detached: true }),
  );
  const ended = once(guard, 'exit');
  ended.catch(() => undefined);
  const isReady = await Promise.race([
    once(guard.stdout, 'data').then(() => true),
    ended.then(() => false),
  ]);
  if (!isReady) throw new Error('the guard of the disks did not start');
  return async () => {
    guard.stdin.end();
    await settledWithin(ended, LIMITS.guardEndMsMax);
  };
}
