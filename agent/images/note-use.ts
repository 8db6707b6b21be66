import { readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ignoring } from '../../shared/errors.ts';
import { paths } from '../system/paths.ts';

interface CacheUser {
  readonly hostId: string;
  readonly dataDir: string;
}

const noteOf = (entry: string, { hostId }: CacheUser): string => join(entry, 'hosts', hostId);

/** For a directory that is not part of the cache, or is read-only. */
const ignoringAbsence = ignoring('ENOENT', 'ENOTDIR', 'EROFS');

/** Marks a directory of the build cache as used, so that scripts/evict-cache leaves it. */
export const touchUse = (entry: string): Promise<void> =>
  utimes(join(entry, 'used'), new Date(), new Date()).catch(ignoringAbsence);

/** Marks an image as used, and notes where the sandboxes are that may depend on it. */
export async function noteUse(entry: string, user: CacheUser): Promise<void> {
  await touchUse(entry);
  await writeFile(noteOf(entry, user), `${user.dataDir}\n`).catch(ignoringAbsence);
}

/** Removes the note when this host has no sandboxes. */
export async function forgetUse(entry: string, user: CacheUser): Promise<void> {
  const sandboxes = await readdir(paths.sandboxes(user.dataDir)).catch(ignoring('ENOENT'));
  if (sandboxes === undefined || sandboxes.length === 0)
    await rm(noteOf(entry, user), { force: true });
}
