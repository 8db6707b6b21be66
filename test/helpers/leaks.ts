import { readdir, readFile, readlink, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { NFT, runWithin } from '../../agent/network/slots/nft.ts';
import { planRouter } from '../../agent/network/slots/router-plan.ts';
import { hasNamespace, slotsWithNamespace } from '../../agent/network/slots/slot-namespace.ts';
import { mountsBelow } from '../../agent/system/mount-table.ts';
import { runDirectoryOf } from '../../agent/system/run-directory.ts';
import type { Environment } from './daemon.ts';
import { loopFiles } from './loops.ts';

const UNOWNED = /process:(?:unhandledRejection|uncaughtException)/u;

const lines = async (path: string): Promise<string[]> => {
  try {
    return (await readFile(path, 'utf8')).split('\n');
  } catch {
    return [];
  }
};

async function processesIn(directory: string): Promise<string[]> {
  const found: string[] = [];
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/u.test(pid) || pid === String(process.pid)) continue;
    const commandLine = (await lines(join('/proc', pid, 'cmdline'))).join('').replaceAll('\0', ' ');
    const cwd = await readlink(join('/proc', pid, 'cwd')).catch(() => '');
    if (commandLine.includes(directory) || cwd.startsWith(directory)) {
      found.push(`process ${pid}: ${commandLine}`);
    }
  }
  return found;
}

function loopDevicesIn(directory: string): string[] {
  const files = [...loopFiles()].filter(([, file]) => file.startsWith(directory));
  return files.map(([name, file]) => `loop device ${name}: ${file}`);
}

async function cgroupsNamed(name: string): Promise<string[]> {
  const roots = await readdir('/sys/fs/cgroup');
  const found: string[] = [];
  for (const path of [name.slice(1), ...roots.map((root) => join(root, name))]) {
    const entries = await readdir(join('/sys/fs/cgroup', path)).catch(() => []);
    const left = await lines(join('/sys/fs/cgroup', path, 'cgroup.procs'));
    if (left.some((line) => line !== '')) found.push(`control group ${path} has processes`);
    for (const entry of entries) {
      const children = await readdir(join('/sys/fs/cgroup', path, entry)).catch(() => undefined);
      if (children !== undefined) found.push(`control group ${path}/${entry}`);
    }
  }
  return found;
}

/** Lists the parts of a host's router: namespace, link and table. */
export async function routerPartsOf(hostId: string): Promise<string[]> {
  const { namespace, hostLink, hostTable } = planRouter(hostId);
  const [hasRouter, links, tables] = await Promise.all([
    hasNamespace(namespace),
    readdir('/sys/class/net'),
    runWithin(undefined, [NFT, 'list', 'tables']),
  ]);
  return [
    ...(hasRouter ? [`namespace ${namespace}`] : []),
    ...links.filter((link) => link === hostLink).map((link) => `link ${link}`),
    ...tables.split('\n').filter((line) => line.endsWith(` ${hostTable}`)),
  ];
}

/** The hosts whose data is in the directory. */
async function hostsIn(directory: string): Promise<string[]> {
  const names = await readdir(directory).catch(() => []);
  const ids = await Promise.all(names.map((name) => lines(join(directory, name, 'host-id'))));
  return ids.map(([hostId = '']) => hostId).filter((hostId) => hostId !== '');
}

/** Their network slots, with their taps and rules, and their mounts of disks. */
async function partsOfHostsIn(directory: string): Promise<string[]> {
  const found: string[] = [];
  for (const hostId of await hostsIn(directory)) {
    const slots = await slotsWithNamespace(hostId);
    found.push(...slots.map((slot) => `network slot ${slot} of ${hostId}`));
    found.push(...(await routerPartsOf(hostId)));
    found.push(...(await mountsBelow(runDirectoryOf(hostId))).map((path) => `mount ${path}`));
  }
  return found;
}

/** Removes the run directories that killed agents leave, in which nothing is mounted any more. */
export async function removeRunDirectories(directory: string): Promise<void> {
  for (const hostId of await hostsIn(directory)) {
    const runDir = runDirectoryOf(hostId);
    if ((await mountsBelow(runDir)).length > 0) continue;
    await rm(runDir, { recursive: true, force: true });
  }
}

/**
 * Lists leftovers of a stopped stack on the host: mounts, processes, loop devices, control groups,
 * slots and routers.
 */
export async function findLeaks(directory: string, cgroup: string): Promise<string[]> {
  const mounts = (await lines('/proc/self/mountinfo')).filter((line) => line.includes(directory));
  return [
    ...mounts.map((line) => `mount ${line}`),
    ...(await processesIn(directory)),
    ...loopDevicesIn(directory),
    ...(await cgroupsNamed(cgroup)),
    ...(await partsOfHostsIn(directory)),
  ];
}

/** Unhandled rejections and uncaught exceptions in the logs of nodes. No test may cause any. */
export const findFaults = (logs: readonly string[]): string[] =>
  logs.flatMap((log) => log.split('\n')).filter((line) => UNOWNED.test(line));

/** Removes what an agent with sandboxes leaves in the build cache (agent/images/note-use.ts). */
export async function forgetImageUse(settings: Readonly<Environment>): Promise<void> {
  const { DEFAULT_IMAGE_DIR = '', AGENT_DATA_DIR = '' } = settings;
  const [hostId = ''] = await lines(join(AGENT_DATA_DIR, 'host-id'));
  const note = join(dirname(DEFAULT_IMAGE_DIR), 'hosts', hostId.trim());
  if (hostId !== '') await rm(note, { force: true });
}
