/* Finds processes, groups and networks that an agent has left on this host. */
import { access, readdir, readFile, stat } from 'node:fs/promises';
import { planRouter } from '../../agent/network/slots/router-plan.ts';
import { hasNamespace, slotsWithNamespace } from '../../agent/network/slots/slot-namespace.ts';
import { detectCgroups, processesBelow, trackingGroup } from '../../agent/system/cgroup.ts';
import { paths } from '../../agent/system/paths.ts';
import { runDirectoryOf } from '../../agent/system/run-directory.ts';
import type { Env } from '../env-file.ts';
import { type Finding, ok, warning } from './finding.ts';

const CHECK = 'leftovers';
/** The default of shared/settings/agent-settings.ts. */
const CGROUP_DEFAULT = '/berth';
const NEXT =
  'start the agent, by ./scripts/up in a checkout: it takes them over, and removes them when it is stopped';

/**
 * Whether an agent holds the lock of the data directory. Taking the lock to find out could keep one
 * from starting.
 */
async function hasAgent(dataDir: string): Promise<boolean> {
  const lock = await stat(paths.lock(dataDir)).catch(() => undefined);
  if (lock === undefined) return false;
  return (await readFile('/proc/locks', 'utf8')).includes(`:${lock.ino} `);
}

const counted = (things: string, count: number, such: string): string =>
  `${things}: ${count}, such as ${such}`;

/** Where something is mounted below the directories. */
async function findMounts(directories: readonly string[]): Promise<string[]> {
  return (await readFile('/proc/self/mountinfo', 'utf8'))
    .split('\n')
    .map((line) => line.split(' ')[4] ?? '')
    .filter((point) => directories.some((directory) => point.startsWith(`${directory}/`)));
}

/** The files below the directories that are behind loop devices. */
async function findLoopFiles(directories: readonly string[]): Promise<string[]> {
  const names = (await readdir('/sys/block')).filter((name) => name.startsWith('loop'));
  const files = names.map((name) =>
    readFile(`/sys/block/${name}/loop/backing_file`, 'utf8').catch(() => ''),
  );
  return (await Promise.all(files))
    .map((text) => text.trim())
    .filter((file) => directories.some((directory) => file.startsWith(`${directory}/`)));
}

/** Processes in the control groups of a host's agent: machines, daemons of its network, helpers. */
async function findProcesses(cgroupParent: string): Promise<string[]> {
  const cgroups = await detectCgroups();
  const group = trackingGroup(cgroups, cgroupParent);
  const isThere = await access(group).then(
    () => true,
    () => false,
  );
  if (!isThere) return [];
  const pids = await processesBelow(cgroups, cgroupParent);
  if (pids.length === 0) return [`the control group ${cgroupParent}`];
  const [first = 0] = pids;
  const name = await readFile(`/proc/${first}/comm`, 'utf8').catch(() => 'one that has just ended');
  return [counted('processes', pids.length, `${first} (${name.trim()})`)];
}

/** Network namespaces of a host's slots and of its router. */
async function findNetworks(hostId: string): Promise<string[]> {
  const slots = await slotsWithNamespace(hostId);
  const { namespace } = planRouter(hostId);
  const count = slots.length + ((await hasNamespace(namespace)) ? 1 : 0);
  const such = slots[0] === undefined ? namespace : `that of slot ${slots[0]}`;
  return count === 0 ? [] : [counted('network namespaces', count, such)];
}

/** Mounts, loop devices, processes, control groups and networks of an agent that does not run. */
export async function checkLeftovers(config: Env): Promise<Finding[]> {
  const { AGENT_DATA_DIR: dataDir, STORAGE_DIR: storage, AGENT_CGROUP: cgroup } = config;
  if (dataDir === undefined) return [ok(CHECK, 'no agent is set up here')];
  if (await hasAgent(dataDir)) return [ok(CHECK, 'the agent runs')];
  const hostId = (await readFile(paths.hostId(dataDir), 'utf8').catch(() => '')).trim();
  const directories = [dataDir, storage].filter((path) => path !== undefined);
  const runDir = hostId === '' ? [] : [runDirectoryOf(hostId)];
  const mounts = await findMounts([...directories, ...runDir]);
  const loops = await findLoopFiles(directories);
  const found = [
    ...(mounts[0] === undefined ? [] : [counted('mounts', mounts.length, mounts[0])]),
    ...(loops[0] === undefined ? [] : [counted('loop devices', loops.length, `of ${loops[0]}`)]),
    ...(hostId === '' ? [] : await findProcesses(`${cgroup ?? CGROUP_DEFAULT}/${hostId}`)),
    ...(hostId === '' ? [] : await findNetworks(hostId)),
  ];
  if (found.length === 0) return [ok(CHECK, 'none')];
  return found.map((what) => warning(CHECK, what, NEXT));
}
