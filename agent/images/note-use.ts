import { utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../../shared/errors.ts';

/**
 * Notes in directories of the build cache that this host uses them, so that scripts/evict-cache
 * leaves them, and knows where to look for sandboxes that stand on them. Others are left alone.
 * @param entries the default image's directory, and the guest's
 */
export async function noteUse(
  entries: readonly string[],
  { hostId, dataDir }: { readonly hostId: string; readonly dataDir: string },
): Promise<void> {
  const now = new Date();
  for (const entry of entries) {
    try {
      await utimes(join(entry, 'used'), now, now);
      await writeFile(join(entry, 'hosts', hostId), `${dataDir}\n`);
    } catch (error) {
      // Not of the cache, or read-only.
      if (!['ENOENT', 'ENOTDIR', 'EROFS'].includes(errnoOf(error) ?? '')) throw error;
    }
  }
}
