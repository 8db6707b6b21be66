import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ignoring } from '../../../shared/errors.ts';
import type { MachineUsage } from '../driver.ts';

const ROOT = '/sys/fs/cgroup';

/** The interface of a machine to its network, as its first process sees it. */
export interface UsageInterface {
  readonly name: string;
  /** The host's end of a tap: what it receives the guest has sent. */
  readonly isHostEnd: boolean;
}

/** Files of the kernel; undefined when they are gone or the host does not have them. */
const readIfThere = (path: string): Promise<string | undefined> =>
  readFile(path, 'utf8').catch(ignoring('ENOENT', 'ENODEV', 'ESRCH', 'EINVAL'));

/** The number after a name in a file of `name value` lines, or the file's only number. */
function numberIn(text: string | undefined, name?: string): number | undefined {
  const pattern = name === undefined ? /^(\d+)$/mu : new RegExp(`^${name} (\\d+)$`, 'mu');
  const [, digits] = pattern.exec(text ?? '') ?? [];
  return digits === undefined ? undefined : Number(digits);
}

/** CPU time is in the second version of control groups, which also hosts of the first have. */
async function cpuSeconds(group: string): Promise<number | undefined> {
  for (const root of [ROOT, join(ROOT, 'unified')]) {
    const microseconds = numberIn(await readIfThere(join(root, group, 'cpu.stat')), 'usage_usec');
    if (microseconds !== undefined) return microseconds / 1e6;
  }
  const nanoseconds = numberIn(await readIfThere(join(ROOT, 'cpuacct', group, 'cpuacct.usage')));
  return nanoseconds === undefined ? undefined : nanoseconds / 1e9;
}

/** Memory without the part of the page cache that the kernel would take back first. */
async function memoryBytes(group: string): Promise<number | undefined> {
  const second = join(ROOT, group);
  const first = join(ROOT, 'memory', group);
  const used =
    numberIn(await readIfThere(join(second, 'memory.current'))) ??
    numberIn(await readIfThere(join(first, 'memory.usage_in_bytes')));
  if (used === undefined) return undefined;
  const cached =
    numberIn(await readIfThere(join(second, 'memory.stat')), 'inactive_file') ??
    numberIn(await readIfThere(join(first, 'memory.stat')), 'total_inactive_file');
  return Math.max(0, used - (cached ?? 0));
}

/** Bytes that the interface has passed since it was made. */
async function networkBytes(
  pid: number,
  { name, isHostEnd }: UsageInterface,
): Promise<Pick<MachineUsage, 'receivedBytes' | 'sentBytes'>> {
  const text = (await readIfThere(`/proc/${pid}/net/dev`)) ?? '';
  const line = text.split('\n').find((each) => each.trimStart().startsWith(`${name}:`));
  const numbers = line?.split(':')[1]?.trim().split(/\s+/u).map(Number);
  // Eight numbers about what was received, then those about what was sent; bytes come first.
  const [taken, given] = [numbers?.[0], numbers?.[8]];
  if (taken === undefined || given === undefined) return {};
  return isHostEnd
    ? { receivedBytes: given, sentBytes: taken }
    : { receivedBytes: taken, sentBytes: given };
}

/**
 * Measures what a machine uses.
 * @param group path of its control group
 * @param pid its first process on the host
 */
export async function readMachineUsage(
  group: string,
  pid: number,
  link: UsageInterface,
): Promise<MachineUsage> {
  const [cpu, memory, network] = await Promise.all([
    cpuSeconds(group),
    memoryBytes(group),
    networkBytes(pid, link),
  ]);
  return {
    ...(cpu === undefined ? {} : { cpuSeconds: cpu }),
    ...(memory === undefined ? {} : { memoryBytes: memory }),
    ...network,
  };
}
