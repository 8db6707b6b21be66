import { lstat, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { ignoring } from '../../../shared/errors.ts';

/** `stat` counts blocks of this size, whatever the file system's own is. */
const BLOCK_BYTES = 512;

/**
 * How many bytes the files directly below these directories take; missing directories take none.
 */
export async function storedBytes(directories: readonly string[]): Promise<number> {
  let blocks = 0;
  for (const directory of directories) {
    for (const name of (await readdir(directory).catch(ignoring('ENOENT'))) ?? []) {
      // A checkpoint that is being removed loses its files one by one.
      blocks += (await lstat(join(directory, name)).catch(ignoring('ENOENT')))?.blocks ?? 0;
    }
  }
  return blocks * BLOCK_BYTES;
}
