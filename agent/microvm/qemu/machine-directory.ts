import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../../../shared/errors.ts';

/**
 * Where a machine keeps what. `run` lasts as long as the machine, `checkpoint` as long as it is
 * paused, `merge` as long as layers of its disk are merged.
 */
export const machinePaths = (directory: string) =>
  ({
    run: join(directory, 'run'),
    merge: join(directory, 'merge'),
    disks: join(directory, 'disks'),
    checkpoint: join(directory, 'checkpoint'),
  }) as const;

/** The names in a directory; none when the directory is missing. */
export async function listNames(path: string): Promise<string[]> {
  try {
    return await readdir(path);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return [];
    throw error;
  }
}
