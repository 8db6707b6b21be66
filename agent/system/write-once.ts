import { link, readFile, rm } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { errnoOf } from '../../shared/errors.ts';
import { syncPath, writeBeside } from './write-durably.ts';

/** The text of a file; undefined without one. */
export async function readOptional(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

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
    await link(temporary, path);
  } catch (error) {
    if (errnoOf(error) !== 'EEXIST') throw error;
  } finally {
    await rm(temporary, { force: true });
  }
  await syncPath(directory);
  return readFile(path, 'utf8');
}
