import { readdir } from 'node:fs/promises';
import { join } from 'node:path';

/**
 * The paths that programs need. Everything else in `/proc` and `/sys` is hidden, since a list of
 * what to hide would never be complete: most of it describes the whole host, and names the devices
 * and file systems of other disks, their locks, and when they are used. Processes are always shown.
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
 * Lists the paths in `/proc` and `/sys` that containers must not see. The host's kernel decides
 * which exist; they have the same names in every container.
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
