import { closeSync, constants } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { errnoOf } from '../../../shared/errors.ts';
import { native } from '../../native/native.ts';

/** open(2)'s flag, which `fs.constants` lacks. The value is the same on x86_64 and arm64. */
const O_PATH = 0o10_000_000;

/**
 * Works on a name in a directory of the disk. Callers may put links anywhere at any time, so paths
 * are never given to the kernel as they are: the directory is opened beneath the root first.
 * @param work gets a path that leads to the name and nowhere else
 * @throws Error ENOENT, ENOTDIR, EXDEV and ELOOP for a directory that is not beneath the root
 */
export async function atPath<T>(
  root: string,
  path: string,
  work: (place: string) => Promise<T>,
): Promise<T> {
  const slash = path.lastIndexOf('/');
  const directory = path.slice(0, Math.max(slash, 0));
  const fd = await native.openBeneath(root, directory, O_PATH | constants.O_DIRECTORY);
  try {
    return await work(`/proc/self/fd/${fd}/${path.slice(slash + 1)}`);
  } finally {
    closeSync(fd);
  }
}

/** Makes the directories that lead to a path. @throws Error ENOTDIR when one is a file */
export async function makeParents(root: string, path: string): Promise<void> {
  for (let slash = path.indexOf('/'); slash !== -1; slash = path.indexOf('/', slash + 1)) {
    await atPath(root, path.slice(0, slash), async (place) => {
      await mkdir(place, { mode: 0o755 }).catch((error: unknown) => {
        if (errnoOf(error) !== 'EEXIST') throw error;
      });
    });
  }
}
