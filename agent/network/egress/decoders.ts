import type { Transform } from 'node:stream';
import {
  constants,
  createBrotliDecompress,
  createGunzip,
  createInflate,
  createZstdDecompress,
} from 'node:zlib';

/**
 * How many decoders with large windows there may be: up to 16 MiB each for brotli (RFC 7932), and 8
 * MiB for zstd. All of them take memory of the one process that serves every slot.
 */
const LARGE_MAX = 16;
/**
 * The most that zstd in HTTP may take, as a power of two (RFC 9659); the library allows 128 MiB.
 */
const ZSTD_WINDOW_LOG_MAX = 23;

// Maps, because a server may name a coding as a property that every object has.
const SMALL: ReadonlyMap<string, () => Transform> = new Map<string, () => Transform>([
  ['gzip', createGunzip],
  ['x-gzip', createGunzip],
  ['deflate', createInflate],
]);
const LARGE: ReadonlyMap<string, () => Transform> = new Map<string, () => Transform>([
  ['br', createBrotliDecompress],
  [
    'zstd',
    () =>
      createZstdDecompress({ params: { [constants.ZSTD_d_windowLogMax]: ZSTD_WINDOW_LOG_MAX } }),
  ],
]);

let largeCount = 0;

/**
 * A stream that decodes a content coding. Destroy it, if it is not read to its end.
 * @returns undefined for unknown codings, and while too many others are being decoded
 */
export function newDecoder(coding: string): Transform | undefined {
  const small = SMALL.get(coding)?.();
  if (small !== undefined || largeCount >= LARGE_MAX) return small;
  const large = LARGE.get(coding)?.();
  if (large === undefined) return undefined;
  largeCount += 1;
  large.once('close', () => {
    largeCount -= 1;
  });
  return large;
}
