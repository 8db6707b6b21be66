import { createHash, timingSafeEqual } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { Crc, CRC32C, CRC64NVME, type Digest } from '../protocol/crc.ts';
import { S3Error, type S3ErrorCode } from '../protocol/errors.ts';
import { headerNames, headerValue, type RawHeaders } from '../protocol/raw-headers.ts';
import type { Payload } from './sigv4.ts';

const PREFIX = 'x-amz-checksum-';
// These headers have the same prefix but carry no checksum.
const NOT_CHECKSUMS = new Set(['algorithm', 'mode', 'type'].map((name) => `${PREFIX}${name}`));

class Crc32 implements Digest {
  #value = 0;

  update(chunk: Buffer): void {
    this.#value = crc32(chunk, this.#value);
  }

  digest(): Buffer {
    const value = Buffer.alloc(4);
    value.writeUInt32BE(this.#value);
    return value;
  }
}

interface Algorithm {
  readonly bytes: number;
  readonly start: () => Digest;
}

const algorithms: ReadonlyMap<string, Algorithm> = new Map([
  ['content-md5', { bytes: 16, start: (): Digest => createHash('md5') }],
  [`${PREFIX}crc32`, { bytes: 4, start: () => new Crc32() }],
  [`${PREFIX}crc32c`, { bytes: 4, start: () => new Crc(CRC32C) }],
  [`${PREFIX}crc64nvme`, { bytes: 8, start: () => new Crc(CRC64NVME) }],
  [`${PREFIX}sha1`, { bytes: 20, start: () => createHash('sha1') }],
  [`${PREFIX}sha256`, { bytes: 32, start: () => createHash('sha256') }],
]);

const isChecksum = (name: string): boolean => name.startsWith(PREFIX) && !NOT_CHECKSUMS.has(name);

/** One checksum that the body must match. */
interface Check {
  readonly header: string;
  readonly digest: Digest;
  /** Undefined when it comes in a trailer. */
  readonly expected: Buffer | undefined;
  readonly code: S3ErrorCode;
}

/** @throws S3Error InvalidDigest */
function decodeValue(header: string, value: string): Buffer {
  const bytes = Buffer.from(value, 'base64');
  if (bytes.length !== algorithms.get(header)?.bytes || bytes.toString('base64') !== value) {
    throw new S3Error('InvalidDigest', `The value of ${header} is invalid.`);
  }
  return bytes;
}

function makeCheck(header: string, value: string | undefined): Check {
  const algorithm = algorithms.get(header);
  if (algorithm === undefined) {
    throw new S3Error('NotImplemented', `${header} is not supported.`);
  }
  const expected = value === undefined ? undefined : decodeValue(header, value);
  return { header, digest: algorithm.start(), expected, code: 'BadDigest' };
}

/**
 * What `x-amz-trailer` announces, in lower case.
 */
export function readTrailerNames(headers: RawHeaders): string[] {
  const text = headerValue(headers, 'x-amz-trailer')?.toLowerCase() ?? '';
  const names = text.split(',').map((name) => name.trim());
  return names.filter((name) => name !== '');
}

/** Verifies a body, as it streams through, against the checksums that its request declares. */
export class BodyChecks {
  readonly #checks: readonly Check[];

  private constructor(checks: readonly Check[]) {
    this.#checks = checks;
  }

  /**
   * Reads Content-MD5, `x-amz-checksum-*`, `x-amz-trailer` and the payload declaration. Not for
   * CompleteMultipartUpload, whose checksum is that of the object and not of the body.
   * @throws S3Error InvalidDigest, InvalidRequest when there is more than one `x-amz-checksum-*`,
   *   NotImplemented for an unknown one
   */
  static read(headers: RawHeaders, payload: Payload): BodyChecks {
    const given = [...new Set(headerNames(headers).filter(isChecksum))];
    const trailers = readTrailerNames(headers);
    if (given.length + trailers.length > 1) {
      throw new S3Error('InvalidRequest', `Only one ${PREFIX} header or trailer may be given.`);
    }
    if (headerValue(headers, 'content-md5') !== undefined) given.push('content-md5');
    const checks = given.map((name) => makeCheck(name, headerValue(headers, name)));
    checks.push(...trailers.map((name) => makeCheck(name, undefined)));
    if (payload.kind === 'sha256') {
      const expected = Buffer.from(payload.sha256, 'hex');
      const code = 'XAmzContentSHA256Mismatch';
      checks.push({ header: 'x-amz-content-sha256', digest: createHash('sha256'), expected, code });
    }
    return new BodyChecks(checks);
  }

  update(chunk: Buffer): void {
    for (const check of this.#checks) check.digest.update(chunk);
  }

  /**
   * Call it once, when the body has ended.
   * @param trailers that came with it
   * @throws S3Error BadDigest, XAmzContentSHA256Mismatch, InvalidDigest for a trailer
   */
  verify(trailers: ReadonlyMap<string, string> = new Map()): void {
    for (const { header, digest, expected, code } of this.#checks) {
      const wanted = expected ?? decodeValue(header, trailers.get(header) ?? '');
      if (!timingSafeEqual(wanted, digest.digest())) throw new S3Error(code);
    }
  }
}
