import { chmod, mkdir, realpath, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf, ignoring } from '../../shared/errors.ts';
import { paths } from './paths.ts';

const ROOT = '/run/berth';

/** Where a host's mounts of disk contents are; one for each host, since ids are unique. */
export const runDirectoryOf = (hostId: string): string => join(ROOT, hostId);

/**
 * Makes the run directory of a host, with its parts. Container users, who have no rights on the
 * host, may traverse to their container's directory and nowhere else. No service manager may own
 * it: mounts below it outlive the agent.
 * @returns its path as the kernel shows it for mounts
 */
export async function openRunDirectory(hostId: string): Promise<string> {
  await makeDirectory(ROOT, 0o711);
  const runDir = join(await realpath(ROOT), hostId);
  await makeRunDirectory(runDir);
  return runDir;
}

/** The same at any place. */
export async function makeRunDirectory(runDir: string): Promise<void> {
  await makeDirectory(runDir, 0o711);
  await makeDirectory(paths.containers(runDir), 0o711);
  await makeDirectory(paths.mounts(runDir), 0o700);
  await makeDirectory(paths.heldDisks(runDir), 0o700);
}

/** Removes a run directory in which nothing is mounted any more; a held disk keeps it. */
export async function removeRunDirectory(runDir: string): Promise<void> {
  const parts = [paths.containers(runDir), paths.mounts(runDir), paths.heldDisks(runDir)];
  for (const path of [...parts, runDir]) await removeIfEmpty(path);
}

/** Never recursive: what is found in a directory may be the contents of a disk. */
export async function removeIfEmpty(path: string): Promise<void> {
  await rmdir(path).catch(ignoring('ENOENT', 'ENOTEMPTY', 'EEXIST', 'EBUSY'));
}

async function makeDirectory(path: string, mode: number): Promise<void> {
  try {
    await mkdir(path, { mode });
  } catch (error) {
    if (errnoOf(error) !== 'EEXIST') throw error;
  }
  await chmod(path, mode);
}
