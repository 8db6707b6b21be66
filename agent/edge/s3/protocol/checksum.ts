import { createHash, type Hash } from 'node:crypto';
import {
  addToCrc,
  addToCrcNow,
  combineCrcs,
  digestCrc,
  newCrc,
} from '../../../disks/disk-calls.ts';
import { S3Error } from './errors.ts';
import { element, type XmlElement } from './xml.ts';

/** In the order of their numbers in stored records; only ever append to it. */
export const CHECKSUM_ALGORITHMS = ['crc32', 'crc32c', 'crc64nvme', 'sha1', 'sha256'] as const;
export type ChecksumAlgorithm = (typeof CHECKSUM_ALGORITHMS)[number];

/**
 * For an object in parts: the checksum of all its bytes, or that of the checksums of its parts. The
 * checksum of any other object is one of all its bytes.
 */
export type ChecksumType = 'COMPOSITE' | 'FULL_OBJECT';

export interface ChecksumKind {
  readonly algorithm: ChecksumAlgorithm;
  readonly type: ChecksumType;
}

/** A checksum as S3 shows it: base64, and `-<parts>` after a composite one. */
export interface ObjectChecksum extends ChecksumKind {
  readonly value: string;
}

export const CHECKSUM_BYTES: Readonly<Record<ChecksumAlgorithm, number>> = {
  ...{ crc32: 4, crc32c: 4, crc64nvme: 8 },
  ...{ sha1: 20, sha256: 32 },
};
/** The kinds of crc.h. */
const CRC_KINDS: Partial<Record<ChecksumAlgorithm, number>> = { crc32: 0, crc32c: 1, crc64nvme: 2 };
/** Fewer bytes are added on the event loop: it takes no longer than asking for a thread. */
const ADDED_NOW_BYTES_MAX = 16_384;

const isCrc = (algorithm: ChecksumAlgorithm): boolean => CRC_KINDS[algorithm] !== undefined;

export const checksumHeader = (algorithm: ChecksumAlgorithm): string =>
  `x-amz-checksum-${algorithm}`;

export const checksumElementName = (algorithm: ChecksumAlgorithm): string =>
  `Checksum${algorithm.toUpperCase()}`;

const sizeOf = (chunks: readonly Buffer[]): number =>
  chunks.reduce((bytes, { length }) => bytes + length, 0);

function crcBytes(value: bigint, algorithm: ChecksumAlgorithm): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(value);
  return bytes.subarray(8 - CHECKSUM_BYTES[algorithm]);
}

/** Takes a checksum of bytes that arrive in pieces. */
export class Checksum {
  readonly algorithm: ChecksumAlgorithm;
  readonly #crc: Buffer | undefined;
  readonly #hash: Hash | undefined;

  constructor(algorithm: ChecksumAlgorithm) {
    this.algorithm = algorithm;
    const kind = CRC_KINDS[algorithm];
    if (kind === undefined) this.#hash = createHash(algorithm);
    else this.#crc = newCrc(kind);
  }

  /** Adds bytes; many of them on a disk thread, or with pauses. Await it before you add more. */
  async add(chunks: readonly Buffer[]): Promise<void> {
    if (sizeOf(chunks) <= ADDED_NOW_BYTES_MAX) {
      for (const chunk of chunks) this.addNow(chunk);
    } else if (this.#crc !== undefined) {
      await addToCrc(this.#crc, chunks);
    } else {
      for (const chunk of chunks) {
        this.#hash?.update(chunk);
        await new Promise((resolve) => setImmediate(resolve));
      }
    }
  }

  /** Adds bytes on the event loop. */
  addNow(chunk: Buffer): void {
    if (this.#crc === undefined) this.#hash?.update(chunk);
    else addToCrcNow(this.#crc, [chunk]);
  }

  /** Big-endian, as headers carry it. Call it once. */
  digest(): Buffer {
    if (this.#crc === undefined) return this.#hash?.digest() ?? Buffer.alloc(0);
    return crcBytes(digestCrc(this.#crc), this.algorithm);
  }
}

/** The checksum of the checksums of parts, as S3 makes it. */
export function compositeOf(
  algorithm: ChecksumAlgorithm,
  parts: readonly Buffer[],
): ObjectChecksum {
  const checksum = new Checksum(algorithm);
  checksum.addNow(Buffer.concat(parts));
  const value = `${checksum.digest().toString('base64')}-${parts.length}`;
  return { algorithm, type: 'COMPOSITE', value };
}

/** The CRC of parts in a row, from their own. */
export async function joinCrcs(
  algorithm: ChecksumAlgorithm,
  parts: readonly { readonly value: Buffer; readonly sizeBytes: number }[],
): Promise<Buffer> {
  const crcs = Buffer.alloc(parts.length * 8);
  const lengths = Buffer.alloc(parts.length * 8);
  for (const [index, { value, sizeBytes }] of parts.entries()) {
    crcs.writeBigUInt64LE(BigInt(`0x${value.toString('hex')}`), index * 8);
    lengths.writeBigUInt64LE(BigInt(sizeBytes), index * 8);
  }
  return crcBytes(await combineCrcs(CRC_KINDS[algorithm] ?? -1, crcs, lengths), algorithm);
}

/** Reads the name of an algorithm as headers carry it. @throws S3Error NotImplemented */
export function readAlgorithm(name: string): ChecksumAlgorithm {
  const found = CHECKSUM_ALGORITHMS.find((each) => each.toUpperCase() === name);
  if (found === undefined) {
    throw new S3Error('NotImplemented', `The checksum algorithm ${name} is not implemented.`);
  }
  return found;
}

/** @throws S3Error InvalidRequest */
export function readChecksumType(text: string | undefined): ChecksumType | undefined {
  if (text === undefined || text === 'COMPOSITE' || text === 'FULL_OBJECT') return text;
  throw new S3Error('InvalidRequest', 'The checksum type must be COMPOSITE or FULL_OBJECT.');
}

/**
 * Reads the kind of checksum that a multipart upload asks for.
 * @throws S3Error NotImplemented, InvalidRequest
 */
export function readChecksumKind(
  algorithmName: string | undefined,
  typeName: string | undefined,
): ChecksumKind | undefined {
  const type = readChecksumType(typeName);
  if (algorithmName === undefined) {
    if (type === undefined) return undefined;
    throw new S3Error('InvalidRequest', 'A checksum type needs a checksum algorithm.');
  }
  const algorithm = readAlgorithm(algorithmName);
  const byDefault = algorithm === 'crc64nvme' ? 'FULL_OBJECT' : 'COMPOSITE';
  assertKind({ algorithm, type: type ?? byDefault });
  return { algorithm, type: type ?? byDefault };
}

/** @throws S3Error InvalidRequest for a type that the algorithm does not have */
export function assertKind({ algorithm, type }: ChecksumKind): void {
  const isPossible = type === 'FULL_OBJECT' ? isCrc(algorithm) : algorithm !== 'crc64nvme';
  if (isPossible) return;
  throw new S3Error('InvalidRequest', `There is no ${type} checksum with ${algorithm}.`);
}

/** @throws S3Error InvalidDigest */
export function decodeChecksum(algorithm: ChecksumAlgorithm, value: string): Buffer {
  const bytes = Buffer.from(value, 'base64');
  if (bytes.length !== CHECKSUM_BYTES[algorithm] || bytes.toString('base64') !== value) {
    throw new S3Error('InvalidDigest', `The ${algorithm} checksum is malformed.`);
  }
  return bytes;
}

/** The headers that show a checksum. */
export const checksumHeaders = (checksum: ObjectChecksum | undefined): Record<string, string> =>
  checksum === undefined
    ? {}
    : {
        [checksumHeader(checksum.algorithm)]: checksum.value,
        'x-amz-checksum-type': checksum.type,
      };

/** The elements that show in a listing what checksum there is. */
export const checksumKindElements = (kind: ChecksumKind | undefined): XmlElement[] =>
  kind === undefined
    ? []
    : [
        element('ChecksumAlgorithm', kind.algorithm.toUpperCase()),
        element('ChecksumType', kind.type),
      ];

/** The elements that show a checksum. */
export const checksumElements = (checksum: ObjectChecksum | undefined): XmlElement[] =>
  checksum === undefined
    ? []
    : [
        element(checksumElementName(checksum.algorithm), checksum.value),
        element('ChecksumType', checksum.type),
      ];

/** A checksum of all bytes of an object, as S3 shows it. */
export const fullChecksum = (algorithm: ChecksumAlgorithm, digest: Buffer): ObjectChecksum => ({
  algorithm,
  type: 'FULL_OBJECT',
  value: digest.toString('base64'),
});
