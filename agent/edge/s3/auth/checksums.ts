import { createHash, timingSafeEqual, type Hash } from 'node:crypto';
import {
  Checksum,
  type ChecksumAlgorithm,
  CHECKSUM_ALGORITHMS,
  checksumHeader,
  decodeChecksum,
} from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import { headerNames, headerValue, type RawHeaders } from '../protocol/raw-headers.ts';
import type { Payload } from './sigv4.ts';

const PREFIX = 'x-amz-checksum-';
// These headers have the same prefix but carry no checksum.
const NOT_CHECKSUMS = new Set(['algorithm', 'mode', 'type'].map((name) => `${PREFIX}${name}`));
const MD5_BYTES = 16;

const isChecksum = (name: string): boolean => name.startsWith(PREFIX) && !NOT_CHECKSUMS.has(name);

/** @throws S3Error NotImplemented */
function algorithmOf(header: string): ChecksumAlgorithm {
  const found = CHECKSUM_ALGORITHMS.find((each) => checksumHeader(each) === header);
  if (found === undefined) throw new S3Error('NotImplemented', `${header} is not implemented.`);
  return found;
}

/** @throws S3Error InvalidDigest */
function decodeMd5(value: string): Buffer {
  const bytes = Buffer.from(value, 'base64');
  if (bytes.length !== MD5_BYTES || bytes.toString('base64') !== value) {
    throw new S3Error('InvalidDigest', 'The value of content-md5 is malformed.');
  }
  return bytes;
}

/** Reads the names that `x-amz-trailer` announces, in lower case. */
export function readTrailerNames(headers: RawHeaders): string[] {
  const text = headerValue(headers, 'x-amz-trailer')?.toLowerCase() ?? '';
  const names = text.split(',').map((name) => name.trim());
  return names.filter((name) => name !== '');
}

/**
 * @throws S3Error InvalidRequest when a client names an algorithm and does not send its checksum
 */
function assertAnnounced(headers: RawHeaders, names: readonly string[]): void {
  const announced = headerValue(headers, 'x-amz-sdk-checksum-algorithm')?.toLowerCase();
  if (announced === undefined || names.includes(`${PREFIX}${announced}`)) return;
  throw new S3Error(
    'InvalidRequest',
    `x-amz-sdk-checksum-algorithm needs ${PREFIX}${announced} as a header or trailer.`,
  );
}

/** The digests with which a request declares its body. */
interface Declared {
  /** SHA-256 of the payload, for the signature. */
  readonly sha256: Buffer | undefined;
  readonly md5: Buffer | undefined;
  readonly checksum: Checksum | undefined;
  /** Undefined when there is none, or it comes in a trailer. */
  readonly value: Buffer | undefined;
}

/**
 * Verifies a body against the digests that its request declares. Whoever stores the body takes its
 * MD5 and its checksum on the way, so that the bytes need not be read again, nor on the event loop.
 */
export class BodyChecks {
  readonly #declared: Declared;
  readonly #payloadHash: Hash | undefined;

  private constructor(declared: Declared) {
    this.#declared = declared;
    this.#payloadHash = declared.sha256 && createHash('sha256');
  }

  /**
   * Reads Content-MD5, `x-amz-checksum-*`, `x-amz-trailer` and the payload declaration. Not for
   * CompleteMultipartUpload, whose checksum is that of the object and not of the body.
   * @throws S3Error InvalidDigest, InvalidRequest when there is more than one `x-amz-checksum-*`,
   *   NotImplemented for an unknown one
   */
  static read(headers: RawHeaders, payload: Payload): BodyChecks {
    const given = [...new Set(headerNames(headers).filter(isChecksum))];
    const names = [...given, ...readTrailerNames(headers)];
    const [name] = names;
    if (names.length > 1) {
      throw new S3Error('InvalidRequest', `Only one ${PREFIX} header or trailer may be given.`);
    }
    assertAnnounced(headers, names);
    const md5 = headerValue(headers, 'content-md5');
    const value = name === undefined ? undefined : headerValue(headers, name);
    const algorithm = name === undefined ? undefined : algorithmOf(name);
    return new BodyChecks({
      sha256: payload.kind === 'sha256' ? Buffer.from(payload.sha256, 'hex') : undefined,
      md5: md5 === undefined ? undefined : decodeMd5(md5),
      checksum: algorithm && new Checksum(algorithm),
      value: algorithm && value !== undefined ? decodeChecksum(algorithm, value) : undefined,
    });
  }

  /** To be taken of the body; undefined when the request declares none. */
  get checksum(): Checksum | undefined {
    return this.#declared.checksum;
  }

  /** Takes the bytes that the signature covers, in their order. */
  update(chunk: Buffer): void {
    this.#payloadHash?.update(chunk);
  }

  /** @throws S3Error XAmzContentSHA256Mismatch. Call it once, when the body has ended. */
  verifyPayload(): void {
    const { sha256 } = this.#declared;
    if (sha256 !== undefined && !timingSafeEqual(sha256, this.#payloadHash!.digest())) {
      throw new S3Error('XAmzContentSHA256Mismatch');
    }
  }

  /**
   * Call it once, when the checksum was taken of the whole body.
   * @param digests.md5 of the body
   * @param digests.checksum the digest of `checksum`
   * @param trailers that came with the body
   * @throws S3Error BadDigest, InvalidDigest for a trailer
   */
  verify(
    digests: { readonly md5: Buffer; readonly checksum: Buffer | undefined },
    trailers: ReadonlyMap<string, string> = new Map(),
  ): void {
    const { md5, checksum, value } = this.#declared;
    if (md5 !== undefined && !timingSafeEqual(md5, digests.md5)) throw new S3Error('BadDigest');
    if (checksum === undefined || digests.checksum === undefined) return;
    const { algorithm } = checksum;
    const trailer = trailers.get(checksumHeader(algorithm)) ?? '';
    const wanted = value ?? decodeChecksum(algorithm, trailer);
    if (!timingSafeEqual(wanted, digests.checksum)) throw new S3Error('BadDigest');
  }
}
