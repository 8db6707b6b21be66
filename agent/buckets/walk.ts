import { native } from '../native/native.ts';
import type { PathProblems } from './problems.ts';

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

const HEAD_BYTES = 44;
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** All files below the root whose names can be keys; the others are noted as problems. */
export async function walk(root: string, problems: PathProblems): Promise<WalkedFile[]> {
  const bytes = await native.walkFiles(root);
  const files: WalkedFile[] = [];
  for (let at = 0; at < bytes.length;) {
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
    }
    at = end;
  }
  return files;
}

function decodePath(name: Buffer): string | undefined {
  try {
    return decoder.decode(name);
  } catch {
    return undefined;
  }
}
