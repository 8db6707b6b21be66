import { readdir, readFile, rmdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { errnoOf, ignoring } from '../../shared/errors.ts';
import { readOptional } from './read-optional.ts';

const ROOT = '/sys/fs/cgroup';
/**
 * Hierarchies in which every container has a group, best first; the host may lack some of them, but
 * always has systemd's own.
 */
const TRACKING = ['pids', 'memory', 'cpu', 'systemd'] as const;
const CHECK_EVERY_MS = 10;

/** How this host's control groups are laid out (cgroups(7)). */
export interface CgroupHost {
  readonly version: 1 | 2;
  readonly controllers: ReadonlySet<string>;
}

/** On a hybrid host (v1 controllers, v2 for systemd's own use) the answer is version 1. */
export async function detectCgroups(): Promise<CgroupHost> {
  const unified = await readOptional(`${ROOT}/cgroup.controllers`);
  if (unified !== undefined) {
    return { version: 2, controllers: new Set(unified.trim().split(' ')) };
  }
  const names = await readdir(ROOT);
  return { version: 1, controllers: new Set(names.flatMap((name) => name.split(','))) };
}

/** How many processes of this group the kernel has killed for lack of memory. */
export async function oomKills(host: CgroupHost, cgroupPath: string): Promise<number> {
  const path =
    host.version === 2
      ? join(ROOT, cgroupPath, 'memory.events')
      : join(ROOT, 'memory', cgroupPath, 'memory.oom_control');
  const text = (await readOptional(path)) ?? '';
  return Number(/^oom_kill (\d+)$/mu.exec(text)?.[1] ?? 0);
}

/** The group's directory in a hierarchy that lists its processes. */
export function trackingGroup(host: CgroupHost, cgroupPath: string): string {
  if (host.version === 2) return join(ROOT, cgroupPath);
  const hierarchy = TRACKING.find((name) => host.controllers.has(name)) ?? 'systemd';
  return join(ROOT, hierarchy, cgroupPath);
}

/**
 * Kills every process in the groups below `cgroupPath`, and waits until they have ended.
 * @param except names of direct child groups that are left alone
 * @returns ids of the processes that did not end in time: they hang in the kernel and run no more
 *   code
 */
export async function killBelow(
  host: CgroupHost,
  cgroupPath: string,
  { except, withinMs }: { except: readonly string[]; withinMs: number },
): Promise<number[]> {
  const group = trackingGroup(host, cgroupPath);
  return killAll(withinMs, async () => {
    const groups = (await listGroups(group)).filter((name) => !except.includes(name));
    const lists = await Promise.all(groups.map((name) => processesIn(join(group, name))));
    return lists.flat();
  });
}

/**
 * Kills every process in the group and below, and waits until they have ended.
 * @returns as {@link killBelow}
 */
export const killGroup = (
  host: CgroupHost,
  cgroupPath: string,
  withinMs: number,
): Promise<number[]> => killAll(withinMs, () => processesIn(trackingGroup(host, cgroupPath)));

async function killAll(withinMs: number, list: () => Promise<number[]>): Promise<number[]> {
  const deadline = performance.now() + withinMs;
  for (;;) {
    const pids = await list();
    if (pids.length === 0 || performance.now() > deadline) return pids;
    for (const pid of pids) killProcess(pid);
    await sleep(CHECK_EVERY_MS);
  }
}

/** Ids of the processes in the group and in all groups below it. */
export const processesBelow = (host: CgroupHost, cgroupPath: string): Promise<number[]> =>
  processesIn(trackingGroup(host, cgroupPath));

async function processesIn(group: string): Promise<number[]> {
  const [own, ...below] = await Promise.all([
    readPids(join(group, 'cgroup.procs')),
    ...(await listGroups(group)).map((name) => processesIn(join(group, name))),
  ]);
  return [...own, ...below.flat()];
}

/** Ids of the processes in a cgroup.procs file; none when the group does not exist. */
export async function readPids(path: string): Promise<number[]> {
  const text = await readFile(path, 'utf8').catch(ignoring('ENOENT', 'ENODEV'));
  return (text ?? '').split('\n').filter(Boolean).map(Number);
}

/** Sends SIGKILL; does nothing when the process has ended already. */
export function killProcess(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch (error) {
    if (errnoOf(error) !== 'ESRCH') throw error;
  }
}

/** Removes `cgroupPath` with the groups below it, and its parent, as far as they are unused. */
export async function removeCgroups(host: CgroupHost, cgroupPath: string): Promise<void> {
  const roots = host.version === 2 ? [ROOT] : (await readdir(ROOT)).map((name) => join(ROOT, name));
  const remove = async (root: string): Promise<void> => {
    await removeTree(join(root, cgroupPath));
    await removeIfUnused(join(root, dirname(cgroupPath)));
  };
  await Promise.all(roots.map(remove));
}

async function removeTree(path: string): Promise<void> {
  for (const entry of await listGroups(path)) await removeTree(join(path, entry));
  await removeIfUnused(path);
}

/** Names of the groups below one; none when it does not exist. */
export async function listGroups(path: string): Promise<string[]> {
  const entries = await readdir(path, { withFileTypes: true }).catch(ignoring('ENOENT', 'ENOTDIR'));
  return (entries ?? []).filter((entry) => entry.isDirectory()).map((entry) => entry.name);
}

/** Leaves a group that is in use: ending its processes is not the caller's right here. */
const removeIfUnused = (path: string): Promise<void> =>
  rmdir(path).catch(ignoring('ENOENT', 'ENOTDIR', 'EBUSY', 'ENOTEMPTY'));
