import { isUtf8 } from 'node:buffer';
import type { SandboxFile } from '../../../shared/schemas/sandbox-file.ts';
import { factsOf, type FileFacts } from '../s3/http/file-response.ts';
import type { FileStat } from '../../sandboxes/files/file-records.ts';

// The content's type is not known: it is sent so that no browser takes it for a page.
const CONTENT_TYPE = 'application/octet-stream';

/** The facts about a file that an HTTP answer needs. */
export const httpFactsOf = (stat: FileStat): FileFacts => factsOf(stat, CONTENT_TYPE);

const PLAIN = /^[\w./~-]$/u;

/** Percent-encodes every byte but letters, digits and `/ . _ ~ -`. */
function encodePath(bytes: Buffer): string {
  return Array.from(bytes, (byte) => {
    const character = String.fromCharCode(byte);
    const hex = byte.toString(16).padStart(2, '0').toUpperCase();
    return PLAIN.test(character) ? character : `%${hex}`;
  }).join('');
}

/** A path as JSON shows it: as text, and percent-encoded as well when it is not UTF-8. */
export function presentPath(bytes: Buffer): { path: string; path_encoded?: string } {
  const path = bytes.toString('utf8');
  return isUtf8(bytes) ? { path } : { path, path_encoded: encodePath(bytes) };
}

const SLASH = Buffer.from('/');

/** The path of an entry, by where it is from a directory. */
export function joinPath(directory: Buffer, entry: Buffer): Buffer {
  if (entry.length === 0) return directory;
  return Buffer.concat(
    directory.at(-1) === SLASH[0] ? [directory, entry] : [directory, SLASH, entry],
  );
}

/** Larger numbers of JSON are not read exactly. */
const SIZE_SHOWN_MAX = BigInt(Number.MAX_SAFE_INTEGER);

/** Whether the length of a file can be told, as answers with its content must. */
export const hasTellableSize = ({ size }: FileStat): boolean => size <= SIZE_SHOWN_MAX;

/** A file as the API shows it. @param target of a link */
export function presentFile(path: Buffer, stat: FileStat, target?: Buffer): SandboxFile {
  const { type, mode, uid, gid, mtime } = stat;
  const size = hasTellableSize(stat) ? stat.size : SIZE_SHOWN_MAX;
  return {
    ...presentPath(path),
    ...{ type, size: Number(size), mode: mode.toString(8).padStart(4, '0'), uid, gid },
    modified_at: mtime.toISOString(),
    ...(type === 'file' ? { etag: httpFactsOf(stat).etag } : {}),
    ...(type === 'link' && target !== undefined ? { target: target.toString('utf8') } : {}),
  };
}
