import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Directory } from '../shared/directory/directory.ts';
import { toError } from '../shared/errors.ts';
import { parseManifest } from '../shared/schemas/disk-manifest.ts';

interface Outcome {
  readonly restored: string[];
  readonly present: string[];
  readonly failed: { disk: string; reason: string }[];
}

/**
 * Restores the directory's records of disks from the manifests on the region's storage. Disks that
 * the directory knows are not touched, so this may be run at any time.
 */
export async function rebuildDisks(directory: Directory, storageDir: string): Promise<Outcome> {
  const outcome: Outcome = { restored: [], present: [], failed: [] };
  const disks = join(storageDir, 'disks');
  for (const name of await readdir(disks)) {
    if (!name.startsWith('dsk-')) continue;
    try {
      const { disk } = parseManifest(await readFile(join(disks, name, 'manifest.json'), 'utf8'));
      if (disk.id !== name) throw new Error(`the manifest is that of ${disk.id}`);
      if (disk.region !== directory.disks.region) {
        throw new Error(`the disk belongs to region ${disk.region}`);
      }
      if ((await directory.accounts.get(disk.accountId)) === undefined) {
        throw new Error(
          `account ${disk.accountId} (${disk.organization}) is missing: restore first`,
        );
      }
      const known = await directory.disks.get(disk.accountId, disk.id);
      if (known !== undefined) {
        outcome.present.push(name);
        continue;
      }
      const { allowedOrigins = [] } = disk;
      const result = await directory.disks.create({
        ...{ ...disk, allowedOrigins, status: 'available' },
      });
      if (result !== 'created') throw new Error(`the name ${disk.name} is taken by another disk`);
      outcome.restored.push(name);
    } catch (error) {
      outcome.failed.push({ disk: name, reason: toError(error).message });
    }
  }
  return outcome;
}
