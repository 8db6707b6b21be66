import { randomBytes } from 'node:crypto';
import { open, rename } from 'node:fs/promises';
import { join } from 'node:path';

/** Contents of a file; in parts, each is made once the one before was written. */
type Contents = string | Buffer | AsyncIterable<string>;

/** Makes a file's contents, or a directory's entries, durable (fsync). */
export async function syncPath(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

/**
 * Makes files and directories durable together: the file system commits once for most of them,
 * where one after the other would be a commit each.
 */
export async function syncPaths(paths: readonly string[]): Promise<void> {
  await Promise.all(paths.map(syncPath));
}

/** Replaces a file atomically and durably: after a crash it holds the old contents or the new. */
export async function writeDurably(
  directory: string,
  name: string,
  contents: Contents,
): Promise<void> {
  const temporary = await writeBeside(directory, name, contents);
  await rename(temporary, join(directory, name));
  await syncPath(directory);
}

/**
 * Writes the contents durably to a hidden file beside the one that they are for.
 * @returns its path, to be renamed or linked
 */
export async function writeBeside(
  directory: string,
  name: string,
  contents: Contents,
): Promise<string> {
  const temporary = join(directory, `.${name}-${randomBytes(6).toString('hex')}`);
  const file = await open(temporary, 'wx', 0o600);
  try {
    await file.writeFile(contents);
    await file.sync();
  } finally {
    await file.close();
  }
  return temporary;
}
