import { readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../../shared/errors.ts';
import { paths } from '../system/paths.ts';

interface CacheUser {
  readonly hostId: string;
  readonly dataDir: string;
}

const noteOf = (entry: string, { hostId }: CacheUser): string => join(entry, 'hosts', hostId);

/** Ignores errors that mean that the directory is not part of the cache, or is read-only. */
async function ifOfCache(work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    if (!['ENOENT', 'ENOTDIR', 'EROFS'].includes(errnoOf(error) ?? '')) throw error;
  }
}

/** Marks a directory of the build cache as used, so that scripts/evict-cache leaves it. */
export const touchUse = (entry: string): Promise<void> =>
  ifOfCache(() => utimes(join(entry, 'used'), new Date(), new Date()));

/** Marks an image as used, and notes where the sandboxes are that may depend on it. */
export async function noteUse(entry: string, user: CacheUser): Promise<void> {
  await touchUse(entry);
  await ifOfCache(() => writeFile(noteOf(entry, user), `${user.dataDir}\n`));
}

/** Removes the note when this host has no sandboxes. */
export async function forgetUse(entry: string, user: CacheUser): Promise<void> {
  const sandboxes = await readdir(paths.sandboxes(user.dataDir)).catch((error: unknown) => {
    if (errnoOf(error) === 'ENOENT') return [];
    throw error;
  });
  if (sandboxes.length === 0) await rm(noteOf(entry, user), { force: true });
}
