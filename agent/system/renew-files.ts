import { randomBytes } from 'node:crypto';
import { copyFile, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ignoring } from '../../shared/errors.ts';
import { syncPath } from './write-durably.ts';

const FILES_AT_ONCE = 16;

/**
 * Replaces each file of a directory by a copy of it, so that a process which still has one open
 * writes to no file that anybody reads. Idempotent, and durable when it returns.
 */
export async function renewFiles(directory: string): Promise<void> {
  const names = (await readdir(directory).catch(ignoring('ENOENT'))) ?? [];
  for (let at = 0; at < names.length; at += FILES_AT_ONCE) {
    const some = names.slice(at, at + FILES_AT_ONCE);
    await Promise.all(some.map((name) => renew(directory, name)));
  }
  if (names.length > 0) await syncPath(directory);
}

async function renew(directory: string, name: string): Promise<void> {
  const path = join(directory, name);
  // A leftover of an earlier attempt.
  if (name.startsWith('.')) return rm(path, { force: true });
  const aside = join(directory, `.${randomBytes(6).toString('hex')}`);
  await copyFile(path, aside);
  await syncPath(aside);
  await rename(aside, path);
}
