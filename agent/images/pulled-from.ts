import { mkdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ignoring } from '../../shared/errors.ts';
import { parseImageReference, repositoryOf } from '../../shared/image-reference.ts';
import { sha256 } from '../../shared/secrets.ts';

/*
 * Repositories that a stored image was pulled from whole. A registry gives manifests and layers to
 * the same callers, so a caller to whom one of these repositories gives the manifest may have the
 * copy on this host. A manifest from anywhere else proves nothing: it may have leaked, and the
 * layers are then another account's secret.
 */

const DIRECTORY = 'pulled-from';

/** The repository of a reference, registry included, as a file name. */
const nameOf = (reference: string): string => sha256(repositoryOf(parseImageReference(reference)));

/** @param image the directory of a stored image */
export async function wasPulledFrom(image: string, reference: string): Promise<boolean> {
  const path = join(image, DIRECTORY, nameOf(reference));
  return (await stat(path).catch(ignoring('ENOENT'))) !== undefined;
}

/** If a crash loses the note, the image is pulled again. A removed image stays removed. */
export async function notePulledFrom(image: string, reference: string): Promise<void> {
  const directory = join(image, DIRECTORY);
  await mkdir(directory, { mode: 0o700 }).catch(ignoring('EEXIST', 'ENOENT'));
  await writeFile(join(directory, nameOf(reference)), '').catch(ignoring('ENOENT'));
}
