import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { ignoring } from '../../../../shared/errors.ts';

/**
 * The layout of a machine's directory. `run` exists while the machine runs, `checkpoint` while it
 * is paused, `merge` while layers of its disk are being merged.
 */
export const machinePaths = (directory: string) =>
  ({
    run: join(directory, 'run'),
    merge: join(directory, 'merge'),
    disks: join(directory, 'disks'),
    checkpoint: join(directory, 'checkpoint'),
  }) as const;

/** The names in a directory; none when the directory is missing. */
export const listNames = async (path: string): Promise<string[]> =>
  (await readdir(path).catch(ignoring('ENOENT'))) ?? [];
