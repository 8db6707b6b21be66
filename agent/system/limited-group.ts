import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ignoring } from '../../shared/errors.ts';
import { type CgroupHost, trackingGroup } from './cgroup.ts';

const ROOT = '/sys/fs/cgroup';

interface GroupLimits {
  readonly memoryBytes: number;
  /** Threads count. Undefined: any number. */
  readonly processes?: number;
}

/**
 * Makes a control group for a program of the host: bounds its memory, where the host can, and keeps
 * it out of swap.
 * @returns the cgroup.procs files that the program joins
 */
export async function makeLimitedGroup(
  host: CgroupHost,
  group: string,
  limits: GroupLimits,
): Promise<string[]> {
  const tracking = trackingGroup(host, group);
  await mkdir(tracking, { recursive: true });
  const groups =
    host.version === 1
      ? await limitEach(host, group, limits)
      : await limitTogether(host, group, limits);
  return [...new Set([tracking, ...groups])].map((each) => join(each, 'cgroup.procs'));
}

async function limitEach(
  { controllers }: CgroupHost,
  group: string,
  { memoryBytes, processes }: GroupLimits,
): Promise<string[]> {
  const made: string[] = [];
  const make = async (controller: string): Promise<string> => {
    const path = join(ROOT, controller, group);
    await mkdir(path, { recursive: true });
    made.push(path);
    return path;
  };
  if (controllers.has('memory')) {
    const memory = await make('memory');
    await setIfThere(join(memory, 'memory.limit_in_bytes'), memoryBytes);
    await setIfThere(join(memory, 'memory.memsw.limit_in_bytes'), memoryBytes);
  }
  if (processes !== undefined && controllers.has('pids')) {
    await setIfThere(join(await make('pids'), 'pids.max'), processes);
  }
  return made;
}

async function limitTogether(
  { controllers }: CgroupHost,
  group: string,
  { memoryBytes, processes }: GroupLimits,
): Promise<string[]> {
  const wanted = ['memory', 'pids'].filter((controller) => controllers.has(controller));
  let path = ROOT;
  for (const name of group.split('/').filter((part) => part !== '')) {
    for (const controller of wanted) {
      await setIfThere(join(path, 'cgroup.subtree_control'), `+${controller}`);
    }
    path = join(path, name);
  }
  await setIfThere(join(path, 'memory.max'), memoryBytes);
  await setIfThere(join(path, 'memory.swap.max'), 0);
  if (processes !== undefined) await setIfThere(join(path, 'pids.max'), processes);
  return [];
}

/** Not every kernel counts swap, and not every host lets its agent limit memory. */
const setIfThere = (path: string, value: number | string): Promise<void> =>
  writeFile(path, String(value)).catch(ignoring('ENOENT', 'EACCES', 'EBUSY'));
