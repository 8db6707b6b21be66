import { lstat, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../../shared/errors.ts';

/** `stat` counts blocks of this size, whatever the file system's own is. */
const BLOCK_BYTES = 512;

/** How many bytes the files directly below these directories take; missing directories take none. */
export async function storedBytes(directories: readonly string[]): Promise<number> {
  let blocks = 0;
  for (const directory of directories) {
    for (const name of (await unlessGone(readdir(directory))) ?? []) {
      // A checkpoint that is being removed loses its files one by one.
      blocks += (await unlessGone(lstat(join(directory, name))))?.blocks ?? 0;
    }
  }
  return blocks * BLOCK_BYTES;
}

async function unlessGone<T>(lookUp: Promise<T>): Promise<T | undefined> {
  try {
    return await lookUp;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}
