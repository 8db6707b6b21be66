import { mkdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ignoring } from '../../shared/errors.ts';
import { parseImageReference, repositoryOf } from '../../shared/image-reference.ts';
import { sha256 } from '../../shared/secrets.ts';

/*
 * Repositories that an image was pulled from whole. A registry gives manifests and layers to the
 * same callers, so a caller to whom one of these repositories gives the manifest may have the copy
 * on this host. A manifest from anywhere else proves nothing: it may have leaked, and the layers
 * are then another account's secret.
 */

const DIRECTORY = 'origins';

/** A name for the repository of a reference, registry included. */
export const originOf = (reference: string): string =>
  sha256(repositoryOf(parseImageReference(reference)));

/** @param image the directory of a stored image */
export async function hasOrigin(image: string, origin: string): Promise<boolean> {
  const found = await stat(join(image, DIRECTORY, origin)).catch(ignoring('ENOENT'));
  return found !== undefined;
}

/** An origin that a crash loses costs another pull. An image that was removed stays removed. */
export async function noteOrigin(image: string, origin: string): Promise<void> {
  const directory = join(image, DIRECTORY);
  await mkdir(directory, { mode: 0o700 }).catch(ignoring('EEXIST', 'ENOENT'));
  await writeFile(join(directory, origin), '').catch(ignoring('ENOENT'));
}
