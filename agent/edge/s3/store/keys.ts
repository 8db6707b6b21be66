import { EDGE_LIMITS } from '../../limits.ts';
import { LIMITS } from '../../../../shared/limits.ts';
import { S3Error } from '../protocol/errors.ts';

/** Where an object lies below a disk's contents. */
export interface ObjectPath {
  /** Without the trailing slash of a directory's key. */
  readonly path: string;
  /** The parent directory; empty: the root of the contents. */
  readonly parent: string;
  readonly name: string;
  /** The key ends in a slash. */
  readonly isDirectory: boolean;
}

/** @throws S3Error `InvalidArgument`, `KeyTooLongError` (docs/object-api.md, Errors) */
export function parseKey(
  key: string,
  bytesMax: number = EDGE_LIMITS.objectKeyBytesMax,
): ObjectPath {
  if (Buffer.byteLength(key) > bytesMax) throw new S3Error('KeyTooLongError');
  const isDirectory = key.endsWith('/');
  const path = isDirectory ? key.slice(0, -1) : key;
  const segments = path.split('/');
  for (const segment of segments) {
    if (!isName(segment)) {
      throw new S3Error('InvalidArgument', 'A segment of the key is not a valid file name.');
    }
    if (Buffer.byteLength(segment) > EDGE_LIMITS.objectNameBytesMax) {
      throw new S3Error(
        'KeyTooLongError',
        `A segment exceeds ${EDGE_LIMITS.objectNameBytesMax} bytes.`,
      );
    }
  }
  const name = segments.pop() ?? '';
  return { path, parent: segments.join('/'), name, isDirectory };
}

/**
 * Reads the key of an object that may exist; undefined when no object can have it. A command may
 * have made longer paths than keys to write can be.
 */
export function parseReadKey(key: string): ObjectPath | undefined {
  try {
    return parseKey(key, LIMITS.objectPathBytesMax);
  } catch (error) {
    if (error instanceof S3Error) return undefined;
    throw error;
  }
}

/** Reads the key of an object that must exist. @throws S3Error `NoSuchKey` when none can have it */
export function readKey(key: string): ObjectPath {
  const target = parseReadKey(key);
  if (target === undefined) throw new S3Error('NoSuchKey');
  return target;
}

/**
 * The common prefix that stands for a key in a listing with a delimiter; undefined: the key does.
 */
export function groupOfKey(
  key: string,
  prefix: string,
  delimiter: string | undefined,
): string | undefined {
  const end = delimiter === undefined ? -1 : key.indexOf(delimiter, prefix.length);
  return end === -1 ? undefined : key.slice(0, end + (delimiter ?? '').length);
}

/** Whether a segment of a key can be the name of a file at all. */
export const isName = (segment: string): boolean =>
  segment !== '' &&
  segment !== '.' &&
  segment !== '..' &&
  !segment.includes('\0') &&
  segment.isWellFormed();

/** Orders keys by their UTF-8 bytes; comparing strings would order them by UTF-16 units. */
export const compareKeys = (a: string, b: string): number =>
  Buffer.compare(Buffer.from(a), Buffer.from(b));
