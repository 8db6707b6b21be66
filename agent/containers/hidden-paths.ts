import { readdir } from 'node:fs/promises';
import { join } from 'node:path';

/**
 * What programs look at. Everything else of the kernel's own file systems is hidden, since a list
 * of what to hide is never complete: most of it is about the whole host, and names the devices and
 * file systems of other disks, their locks, and when they are used. Processes are always shown.
 */
const SHOWN: readonly { directory: string; names: ReadonlySet<string> }[] = [
  {
    directory: '/proc',
    names: new Set([
      ...['cgroups', 'cpuinfo', 'filesystems', 'loadavg', 'meminfo', 'mounts', 'net', 'self'],
      ...['stat', 'swaps', 'sys', 'sysvipc', 'thread-self', 'uptime', 'version', 'vmstat'],
    ]),
  },
  { directory: '/sys', names: new Set(['devices']) },
  // Processors and memory nodes.
  { directory: '/sys/devices', names: new Set(['system']) },
];

/**
 * What containers must not see of `/proc` and `/sys`. The kernel of the host decides what is there,
 * and has the same names in every container.
 */
export async function readHiddenPaths(): Promise<string[]> {
  const found = await Promise.all(
    SHOWN.map(async ({ directory, names }) =>
      (await readdir(directory))
        .filter((name) => !names.has(name) && !/^\d+$/u.test(name))
        .map((name) => join(directory, name)),
    ),
  );
  return found.flat();
}
