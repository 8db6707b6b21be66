import { setImmediate as turn } from 'node:timers/promises';
import { errnoOf } from '../../../shared/errors.ts';
import { DISK_LIMITS } from '../limits.ts';
import { walkFiles } from '../disk-calls.ts';
import { BucketError } from './bucket.ts';
import { type PathProblems, tooMany } from './problems.ts';

/** A regular file of a disk as a walk found it. */
export interface WalkedFile {
  readonly path: string;
  readonly inode: bigint;
  readonly sizeBytes: number;
  readonly mtimeNs: bigint;
  readonly ctimeNs: bigint;
  /** When it was last read, as exactly as the file system notes that (relatime). */
  readonly atimeNs: bigint;
}

/** The count of what was left out comes first. */
const FIRST_BYTES = 8;
const HEAD_BYTES = 44;
/** Others have their turn after so many. */
const SLICE_FILES = 10_000;
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * All files below the root whose names can be keys; the others are noted as problems. Files that no
 * system call can name by their paths are only counted.
 * @throws BucketError when they are more than a disk may have
 */
export async function walk(root: string, problems: PathProblems): Promise<WalkedFile[]> {
  const bytes = await readFiles(root);
  problems.count += Number(bytes.readBigInt64LE());
  const files: WalkedFile[] = [];
  for (let at = FIRST_BYTES; at < bytes.length;) {
    const end = at + HEAD_BYTES + bytes.readUInt32LE(at);
    const name = bytes.subarray(at + HEAD_BYTES, end);
    const path = decodePath(name);
    if (path === undefined) problems.note(name.toString('latin1'), 'the name is not UTF-8');
    else {
      files.push({
        path,
        inode: bytes.readBigInt64LE(at + 4),
        sizeBytes: Number(bytes.readBigInt64LE(at + 12)),
        mtimeNs: bytes.readBigInt64LE(at + 20),
        ctimeNs: bytes.readBigInt64LE(at + 28),
        atimeNs: bytes.readBigInt64LE(at + 36),
      });
      if (files.length % SLICE_FILES === 0) await turn();
    }
    at = end;
  }
  return files;
}

async function readFiles(root: string): Promise<Buffer> {
  try {
    const { bucketKeysMax: filesMax, bucketKeyBytesMax: nameBytesMax } = DISK_LIMITS;
    return await walkFiles(root, filesMax, nameBytesMax + filesMax * HEAD_BYTES);
  } catch (error) {
    if (errnoOf(error) !== 'EOVERFLOW') throw error;
    throw new BucketError('disk', tooMany('the disk', 'files'), { cause: error });
  }
}

function decodePath(name: Buffer): string | undefined {
  try {
    return decoder.decode(name);
  } catch {
    return undefined;
  }
}
