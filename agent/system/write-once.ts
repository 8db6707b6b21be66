import { link, readFile, rm } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { ignoring } from '../../shared/errors.ts';
import { readOptional } from './read-optional.ts';
import { syncPath, writeBeside } from './write-durably.ts';

/**
 * Makes a file durably unless it exists. Of several that try at once, hosts included, one succeeds.
 * @returns the text that the file has
 */
export async function writeOnce(path: string, contents: string): Promise<string> {
  const present = await readOptional(path);
  if (present !== undefined) return present;
  const directory = dirname(path);
  const temporary = await writeBeside(directory, basename(path), contents);
  try {
    await link(temporary, path).catch(ignoring('EEXIST'));
  } finally {
    await rm(temporary, { force: true });
  }
  await syncPath(directory);
  return readFile(path, 'utf8');
}
