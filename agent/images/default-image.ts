import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { BuiltImage, ImagePlatform } from './built-image.ts';

/** Its environment is that of every process: see the guest's and the containers' own defaults. */
const CONFIG = { env: {}, workingDir: '/', user: '' } as const;

/**
 * The image made at set-up (scripts/build-image). It comes from no registry, so its digest is that
 * of its description, or of its path when it has none.
 * @param imageDir the root directory
 * @param rootDisk the same as a disk; undefined on hosts that need none
 */
export async function openDefaultImage(
  imageDir: string,
  rootDisk: string | undefined,
): Promise<BuiltImage> {
  const directory = dirname(imageDir);
  const description = await readFile(join(directory, 'image.json')).catch(() => imageDir);
  return {
    digest: `sha256:${createHash('sha256').update(description).digest('hex')}`,
    platform: hostPlatform(),
    config: CONFIG,
    rootDisk: rootDisk ?? join(directory, 'root.ext4'),
    tree: imageDir,
  };
}

export const hostPlatform = (): ImagePlatform => (process.arch === 'arm64' ? 'arm64' : 'amd64');
