import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { dirname, basename } from 'node:path';
import { errnoOf } from '../../../shared/errors.ts';
import { writeDurably } from '../../system/write-durably.ts';

const KEY_BYTES = 32;

/** The key that the authorities of this host's sandboxes follow from; made when there is none. */
export async function readHostKey(path: string): Promise<Buffer> {
  try {
    const key = await readFile(path);
    if (key.length !== KEY_BYTES) throw new Error(`${path} is damaged; restore it from a backup`);
    return key;
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error;
    await writeDurably(dirname(path), basename(path), randomBytes(KEY_BYTES));
    return readFile(path);
  }
}
