import { join } from 'node:path';
import {
  beginWriteBack,
  closeFile,
  copyRange,
  lstat,
  openFile,
  statFile,
  syncData,
  truncateFile,
} from '../../../disks/disk-calls.ts';
import { toItsEnd } from '../../../disks/disk-threads.ts';
import type { StoredPart } from './upload-files.ts';
import { ignoring } from '../../../../shared/errors.ts';
import { MiB } from '../../../../shared/units.ts';

/** How much one call on a pool thread copies, so that other work gets its turn. */
const COPY_BYTES = 16 * MiB;

export interface Assembly extends AsyncDisposable {
  readonly fd: number;
  readonly path: string;
}

/**
 * Appends the other parts to the file of the first one, which saves copying that. Unless the file
 * is renamed, disposing of the assembly truncates it to the part again; after a crash the next
 * assembly does so, since the names of parts contain their lengths.
 */
export async function assemble(
  directory: string,
  first: StoredPart,
  others: readonly StoredPart[],
): Promise<Assembly> {
  const path = join(directory, first.name);
  const fd = await openFile(path, 'r+');
  const restore = (): Promise<void> =>
    toItsEnd(async () => {
      try {
        if (await isAt(path, fd)) await truncateFile(fd, first.sizeBytes);
      } finally {
        await closeFile(fd);
      }
    });
  try {
    await truncateFile(fd, first.sizeBytes);
    let offset = first.sizeBytes;
    for (const part of others) {
      await copyPart(fd, offset, directory, part);
      offset += part.sizeBytes;
    }
    await syncData(fd);
  } catch (error) {
    await restore();
    throw error;
  }
  return { fd, path, [Symbol.asyncDispose]: restore };
}

/** Whether the open file still has its name; if not, it has become the object. */
async function isAt(path: string, fd: number): Promise<boolean> {
  const found = await lstat(path, { bigint: true }).catch(ignoring('ENOENT', 'ENOTDIR'));
  return found?.ino === (await statFile(fd, { bigint: true })).ino;
}

async function copyPart(
  to: number,
  offset: number,
  directory: string,
  { name, sizeBytes }: StoredPart,
): Promise<void> {
  const from = await openFile(join(directory, name), 'r');
  try {
    for (let done = 0; done < sizeBytes;) {
      const wanted = Math.min(COPY_BYTES, sizeBytes - done);
      const copied = await copyRange(from, to, done, offset + done, wanted);
      if (copied === 0) throw new Error(`part ${name} was truncated`);
      done += copied;
    }
    await beginWriteBack(to, offset, sizeBytes);
  } finally {
    await closeFile(from);
  }
}
