import { readFile, stat } from 'node:fs/promises';
import { native } from '../native/native.ts';

/** Among the numbers in `/sys/…/stat` of a block device. That of writes counts empty ones as well. */
const SECTORS_WRITTEN = 6;

/** The device's name in `/sys`. In its number, glibc mixes the bits of both parts. */
function deviceOf(dev: bigint): string {
  const major = ((dev >> 8n) & 0xfffn) | ((dev >> 32n) & 0xfffff000n);
  const minor = (dev & 0xffn) | ((dev >> 12n) & 0xfff00n);
  return `${major}:${minor}`;
}

/**
 * How many sectors were ever written to the device of a file system, once all that was written to the
 * file system so far is there. When that is the same twice, nothing was written in between: neither
 * data, also through mappings, nor names, modes or times (decision 0070).
 * @returns undefined when the host does not count
 */
export async function deviceWrites(mount: string): Promise<string | undefined> {
  await native.syncFileSystem(mount);
  const { dev } = await stat(mount, { bigint: true });
  const device = `/sys/dev/block/${deviceOf(dev)}`;
  try {
    const [counted, text] = await Promise.all([
      readFile(`${device}/queue/iostats`, 'utf8'),
      readFile(`${device}/stat`, 'utf8'),
    ]);
    return counted.trim() === '0' ? undefined : text.trim().split(/\s+/u)[SECTORS_WRITTEN];
  } catch {
    return undefined; // Not a block device of its own, or no such files in this container.
  }
}
