import { BerthError } from '../errors.ts';

/**
 * A path: text, or bytes where it is not UTF-8. A path of bytes is what `path_encoded` of an answer
 * stands for; see {@link decodePath}.
 */
export type FilePath = string | Uint8Array;

const HEX = 16;
const encoder = new TextEncoder();
const UNRESERVED = /^[\w.~/-]$/u;

const encodeByte = (byte: number): string => {
  const character = String.fromCharCode(byte);
  if (UNRESERVED.test(character)) return character;
  return `%${byte.toString(HEX).toUpperCase().padStart(2, '0')}`;
};

/** @internal Percent-encoded, as in queries and in the fields `…_encoded`. */
export function encodePath(path: FilePath): string {
  const bytes = typeof path === 'string' ? encoder.encode(path) : path;
  return Array.from(bytes, encodeByte).join('');
}

/**
 * The path of an entry for further calls, whatever its bytes are: use it where names may not be
 * UTF-8.
 *
 * @example
 * for await (const entry of sandbox.files.list('/data'))
 *   await sandbox.files.remove(decodePath(entry));
 */
export function decodePath({
  path,
  path_encoded: encoded,
}: {
  readonly path: string;
  readonly path_encoded?: string | undefined;
}): FilePath {
  if (encoded === undefined) return path;
  const bytes: number[] = [];
  for (const [, hex, character = ''] of encoded.matchAll(/%([\dA-F]{2})|([^%])/giu)) {
    bytes.push(hex === undefined ? character.charCodeAt(0) : Number.parseInt(hex, HEX));
  }
  return Uint8Array.from(bytes);
}

/** @internal The fields of a body that carry a path. */
export function pathField<N extends string>(
  name: N,
  path: FilePath,
): Partial<Record<N | `${N}_encoded`, string>> {
  const isText = typeof path === 'string';
  const fields = isText ? { [name]: path } : { [`${name}_encoded`]: encodePath(path) };
  return fields as Partial<Record<N | `${N}_encoded`, string>>;
}

/**
 * @internal The URL's path of a key. URLs resolve `.` and `..`, so a key with these would name
 * something else.
 * @throws BerthError `bad_path`
 */
export function encodeKey(path: string): string {
  const key = path.replace(/^\//u, '');
  const segments = key.replace(/\/$/u, '').split('/');
  if (segments.some((segment) => segment === '' || segment === '.' || segment === '..')) {
    throw new BerthError('bad_path', 'a path on a disk has no empty, `.` or `..` segments');
  }
  return encodePath(key);
}
