import { AppError } from '../../shared/errors.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';

const SEGMENT_BYTES_MAX = 255;

/** @throws AppError `bad_request` unless the path is relative and each segment a plain name */
export function checkRelative(path: string, what: string): void {
  const bad = (reason: string): AppError =>
    new AppError('bad_request', `${what} ${JSON.stringify(path)} ${reason}`);
  if (path === '') throw bad('is empty');
  if (path.startsWith('/')) throw bad('is absolute; it must be relative');
  if (Buffer.byteLength(path) > SCHEMA_LIMITS.mountPathBytesMax) throw bad('is too long');
  if (path.includes('\0')) throw bad('contains a NUL character');
  for (const segment of path.split('/')) {
    if (segment === '') throw bad('has an empty segment');
    if (segment === '.' || segment === '..') throw bad(`has a "${segment}" segment`);
    if (Buffer.byteLength(segment) > SEGMENT_BYTES_MAX) throw bad('has a segment that is too long');
  }
}
