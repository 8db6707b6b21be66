import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const read = (path: string): string => {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
};

/** A process that is not the test's child, identified by pid and start time. */
export interface ForeignProcess {
  readonly pid: number;
  readonly name: string;
  readonly startTime: string;
}

/** @returns undefined when no process has this pid */
export function processOf(pid: number): ForeignProcess | undefined {
  const stat = /^\d+ \((.*)\) (.*)$/su.exec(read(`/proc/${pid}/stat`).trim());
  const [, name, rest] = stat ?? [];
  // Counting from the field after the name, proc_pid_stat(5) has the state as field 3, the start
  // time as 22.
  const startTime = rest?.split(' ')[22 - 3];
  return name === undefined || startTime === undefined ? undefined : { pid, name, startTime };
}

/** @returns whether the same process was still running */
export function signal({ pid, startTime }: ForeignProcess, name: NodeJS.Signals): boolean {
  if (processOf(pid)?.startTime !== startTime) return false;
  try {
    process.kill(pid, name);
    return true;
  } catch {
    return false; // The process ended in the meantime.
  }
}

/** Direct children that the main thread of a process started. */
export const childrenOf = (pid: number): ForeignProcess[] =>
  read(`/proc/${pid}/task/${pid}/children`)
    .split(' ')
    .filter((text) => text !== '')
    .map((text) => processOf(Number(text)))
    .filter((child) => child !== undefined);

/** Short-lived programs that an agent starts. */
const HELPERS = new Set(['disk', 'mke2fs', 'debugfs', 'runc', 'ip', 'nft', 'qemu-img']);

/** Waits for a helper program of an agent. @returns undefined when none ran within the time */
export async function nextHelper(
  agentPid: number,
  withinMs: number,
  names: ReadonlySet<string> = HELPERS,
): Promise<ForeignProcess | undefined> {
  const deadline = performance.now() + withinMs;
  while (performance.now() < deadline) {
    const helper = childrenOf(agentPid).find(({ name }) => names.has(name));
    if (helper !== undefined) return helper;
    await sleep(1);
  }
  return undefined;
}

/** The processes of the virtual machines below an agent's data directory. */
export function machinesIn(dataDir: string): { qemu: ForeignProcess; shim: ForeignProcess }[] {
  const found: { qemu: ForeignProcess; shim: ForeignProcess }[] = [];
  const directory = join(dataDir, 'sandboxes');
  let names: string[] = [];
  try {
    names = readdirSync(directory);
  } catch {
    return found; // The host has had no sandboxes.
  }
  for (const name of names) {
    const text = read(join(directory, name, 'run/machine.json'));
    if (text === '') continue;
    const { machine, keeper } = JSON.parse(text) as Record<
      'machine' | 'keeper',
      { pid: number; startTime: string }
    >;
    const qemu = processOf(machine.pid);
    const shim = processOf(keeper.pid);
    // The shim writes the host's boot id before the start time.
    const isSame = (present: ForeignProcess | undefined, startTime: string): boolean =>
      startTime.endsWith(`/${present?.startTime}`);
    if (
      qemu !== undefined &&
      shim !== undefined &&
      isSame(qemu, machine.startTime) &&
      isSame(shim, keeper.startTime)
    ) {
      found.push({ qemu, shim });
    }
  }
  return found;
}

/** The NFS servers of virtual machines in an agent's control group. */
export function nfsServersIn(cgroup = ''): ForeignProcess[] {
  if (cgroup === '') return []; // Every process is below it.
  const pids = readdirSync('/proc').filter((name) => /^\d+$/u.test(name));
  return pids
    .filter((pid) => read(`/proc/${pid}/cgroup`).includes(cgroup))
    .map((pid) => processOf(Number(pid)))
    .filter((found) => found !== undefined)
    .filter(({ name }) => name.startsWith('ganesha'));
}
