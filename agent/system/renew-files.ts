import { randomBytes } from 'node:crypto';
import { copyFile, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../../shared/errors.ts';

/**
 * Replaces each file of a directory by a copy of it, so that a process which still has one open writes
 * to no file that anybody reads. Idempotent.
 */
export async function renewFiles(directory: string): Promise<void> {
  const names = await readdir(directory).catch((error: unknown) => {
    if (errnoOf(error) === 'ENOENT') return [];
    throw error;
  });
  for (const name of names) {
    // A leftover of an earlier attempt.
    if (name.startsWith('.')) {
      await rm(join(directory, name), { force: true });
      continue;
    }
    const aside = join(directory, `.${randomBytes(6).toString('hex')}`);
    await copyFile(join(directory, name), aside);
    await rename(aside, join(directory, name));
  }
}
