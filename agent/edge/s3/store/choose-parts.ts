import { EDGE_LIMITS } from '../../limits.ts';
import type { ChecksumAlgorithm, ChecksumType, ObjectChecksum } from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import type { PartChecksum, StoredPart } from './upload-files.ts';

/** A part as the caller lists it. */
export interface PartRef {
  readonly partNumber: number;
  /** Without quotes. */
  readonly etag: string;
  readonly checksums?: readonly PartChecksum[];
}

/** The object as the caller of a completion describes it. */
export interface ExpectedObject {
  readonly sizeBytes?: number | undefined;
  readonly checksumType?: ChecksumType | undefined;
  readonly checksum?: Pick<ObjectChecksum, 'algorithm' | 'value'> | undefined;
}

export const pairOf = ({ partNumber, etag }: PartRef): [number, string] => [partNumber, etag];

const fits = (stored: StoredPart, algorithm: ChecksumAlgorithm, value: Buffer): boolean =>
  stored.checksum?.algorithm === algorithm && stored.checksum.value.equals(value);

/**
 * Finds the stored parts that the caller of a completion lists.
 * @throws S3Error when they are not there, have other checksums or cannot be joined
 *   (docs/object-api.md, Errors)
 */
export function chooseParts(
  stored: readonly StoredPart[],
  parts: readonly PartRef[],
  { sizeBytes: expectedBytes }: ExpectedObject,
): StoredPart[] {
  const known = new Map(stored.map((part) => [pairOf(part).join(), part]));
  const chosen: StoredPart[] = [];
  let before = 0;
  for (const part of parts) {
    if (part.partNumber <= before) throw new S3Error('InvalidPartOrder');
    before = part.partNumber;
    const found = known.get(pairOf(part).join());
    if (found === undefined) throw new S3Error('InvalidPart');
    for (const { algorithm, value } of part.checksums ?? []) {
      if (fits(found, algorithm, value)) continue;
      throw new S3Error(
        'InvalidPart',
        `Part ${part.partNumber} has no such ${algorithm} checksum.`,
      );
    }
    chosen.push(found);
  }
  if (chosen.slice(0, -1).some(({ sizeBytes }) => sizeBytes < EDGE_LIMITS.partBytesMin)) {
    throw new S3Error('EntityTooSmall');
  }
  const sizeBytes = chosen.reduce((sum, part) => sum + part.sizeBytes, 0);
  if (sizeBytes > EDGE_LIMITS.objectBytesMax) throw new S3Error('EntityTooLarge');
  if (expectedBytes !== undefined && expectedBytes !== sizeBytes) {
    throw new S3Error('InvalidRequest', `The parts have ${sizeBytes} bytes, not ${expectedBytes}.`);
  }
  return chosen;
}
