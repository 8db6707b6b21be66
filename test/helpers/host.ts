import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { paths } from '../../agent/system/paths.ts';
import { runDirectoryOf } from '../../agent/system/run-directory.ts';
import { layoutOf } from '../../agent/disks/disk-layout.ts';
import type { Environment } from './daemon.ts';
import type { Stack } from './stack.ts';

const read = (path: string): Promise<string> => readFile(path, 'latin1').catch(() => '');

const pids = async (): Promise<string[]> =>
  (await readdir('/proc')).filter((name) => /^\d+$/u.test(name));

/** A variable of the environment that marks processes for {@link processesMarked}. */
export const newMark = (): string => `BERTH_MARK=${randomBytes(8).toString('hex')}`;

/** Processes of this host, in containers or not, whose arguments or environment hold the text. */
export async function processesMarked(mark: string): Promise<string[]> {
  const found: string[] = [];
  for (const pid of await pids()) {
    if (pid === String(process.pid)) continue;
    const [args, environment] = [join('/proc', pid, 'cmdline'), join('/proc', pid, 'environ')];
    if ((await read(args)).includes(mark) || (await read(environment)).includes(mark)) {
      found.push(`${pid} ${(await read(args)).replaceAll('\0', ' ').slice(0, 200)}`);
    }
  }
  return found;
}

/** The name of the host whose agent has this environment, once the agent has started. */
export const hostIdOf = async (environment: Environment): Promise<string> =>
  (await readFile(join(environment['AGENT_DATA_DIR'] ?? '', 'host-id'), 'utf8')).trim();

/** Where that agent mounts disks; a directory that is not there for one that has never started. */
export function runDirOf(environment: Environment): string {
  const file = paths.hostId(environment['AGENT_DATA_DIR'] ?? '');
  return runDirectoryOf(existsSync(file) ? readFileSync(file, 'utf8').trim() : 'none');
}

/** Where a stack's agent mounts a disk. */
export const diskMount = ({ environment }: Pick<Stack, 'environment'>, diskId: string): string =>
  paths.mount(runDirOf(environment), diskId);

/** Names of the stack's agents that have a disk mounted. */
export async function holdersOf({ agents }: Stack, diskId: string): Promise<string[]> {
  const table = await read('/proc/self/mountinfo');
  const targets = new Set(table.split('\n').map((line) => line.split(' ')[4]));
  const holders = agents.filter((agent) => targets.has(diskMount(agent, diskId)));
  return holders.map(({ daemon }) => daemon.name);
}

/** Path of a disk's contents that a stack's agent has mounted. */
export const diskContents = (stack: Stack, diskId: string): string =>
  layoutOf(diskMount(stack, diskId)).contents;

/** The users of a mounted disk: open files, working directories, mounts in other namespaces. */
export async function usersOfDisk(mount: string): Promise<string[]> {
  const { dev } = await stat(mount);
  const found: string[] = [];
  const ownTable = await read('/proc/self/mountinfo');
  const device = ownTable.split('\n').find((line) => line.split(' ')[4] === mount);
  const number = device?.split(' ')[2] ?? 'not mounted';
  for (const pid of await pids()) {
    const table = await read(join('/proc', pid, 'mountinfo'));
    for (const line of table.split('\n')) {
      const [, , mounted, , target] = line.split(' ');
      if (mounted === number && target !== mount) found.push(`${pid} mounts it at ${target}`);
    }
    const files = await readdir(join('/proc', pid, 'fd')).catch(() => []);
    for (const name of ['cwd', 'root', 'exe', ...files.map((fd) => join('fd', fd))]) {
      const used = await stat(join('/proc', pid, name)).catch(() => undefined);
      if (used?.dev === dev) found.push(`${pid} has ${name} on it`);
    }
  }
  return found;
}

/** A process's peak memory, in bytes. */
export async function peakMemoryBytes(pid: number): Promise<number> {
  const status = await read(join('/proc', String(pid), 'status'));
  return Number(/^VmHWM:\s+(\d+) kB$/mu.exec(status)?.[1]) * 1024;
}

/** The group of one container: its id is a UUID. */
const containerGroup = /\/[0-9a-f-]{36}$/u;

async function listTree(path: string, depth: number): Promise<string[]> {
  const entries = await readdir(path, { withFileTypes: true }).catch(() => []);
  const found = entries.filter((entry) => entry.isDirectory()).map(({ name }) => join(path, name));
  if (depth === 1) return found;
  return [
    ...found,
    ...(await Promise.all(found.map((child) => listTree(child, depth - 1)))).flat(),
  ];
}

/**
 * Current traces of a stack's agent on the host: mounts, containers, loop devices, control groups.
 */
export async function hostTraces({ environment, directory }: Stack): Promise<string[]> {
  const dataDir = environment['AGENT_DATA_DIR'] ?? '';
  const runDir = runDirOf(environment);
  const table = (await read('/proc/self/mountinfo')).split('\n');
  const mounts = table.map((line) => line.split(' ')[4] ?? '');
  const loops = await readdir('/sys/block');
  const backing = await Promise.all(
    loops.map((name) => read(join('/sys/block', name, 'loop/backing_file'))),
  );
  const hierarchies = ['/sys/fs/cgroup', ...(await listTree('/sys/fs/cgroup', 1))];
  const groups = hierarchies.map((root) =>
    listTree(join(root, environment['AGENT_CGROUP'] ?? ''), 2),
  );
  return [
    ...mounts.filter((target) => target.startsWith(dataDir) || target.startsWith(runDir)),
    ...(await listTree(paths.containers(runDir), 1)),
    ...(await listTree(paths.runcRoot(dataDir), 1)),
    ...(await listTree(paths.mounts(runDir), 1)),
    ...backing.filter((file) => file.startsWith(directory)).map((file) => file.trim()),
    ...(await Promise.all(groups)).flat().filter((path) => containerGroup.test(path)),
  ];
}
