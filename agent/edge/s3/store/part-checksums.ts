import { MiB } from '../../../../shared/units.ts';
import { readBytes } from '../../../disks/disk-calls.ts';
import {
  assertKind,
  Checksum,
  type ChecksumAlgorithm,
  type ChecksumKind,
  compositeOf,
  fullChecksum,
  joinCrcs,
  type ObjectChecksum,
} from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import type { ExpectedObject } from './choose-parts.ts';
import { statusOf } from './file-calls.ts';
import type { StoredPart } from './upload-files.ts';

const READ_BYTES = MiB;

/**
 * The checksum that the object of a completed upload gets: the one that the upload was created
 * with, or else the one that its completion gives.
 * @throws S3Error InvalidRequest when they differ in kind
 */
export function checksumKind(
  created: ChecksumKind | undefined,
  { checksum, checksumType }: ExpectedObject,
): ChecksumKind | undefined {
  if (created === undefined) {
    if (checksum === undefined) return undefined;
    const type = checksumType ?? (checksum.value.includes('-') ? 'COMPOSITE' : 'FULL_OBJECT');
    assertKind({ algorithm: checksum.algorithm, type });
    return { algorithm: checksum.algorithm, type };
  }
  const { algorithm, type } = created;
  const isOther = checksum !== undefined && checksum.algorithm !== algorithm;
  if (isOther || (checksumType !== undefined && checksumType !== type)) {
    throw new S3Error(
      'InvalidRequest',
      `The upload was created with a ${type} ${algorithm} checksum.`,
    );
  }
  return created;
}

/**
 * The checksum of the object that the parts make.
 * @returns undefined when it can only be taken of the object's bytes
 * @throws S3Error InvalidRequest when the parts have no checksums to make a composite one
 */
export async function joinChecksums(
  { algorithm, type }: ChecksumKind,
  parts: readonly StoredPart[],
): Promise<ObjectChecksum | undefined> {
  const known = parts.flatMap(({ sizeBytes, checksum }) =>
    checksum?.algorithm === algorithm ? [{ sizeBytes, value: checksum.value }] : [],
  );
  if (known.length === parts.length) {
    return type === 'COMPOSITE'
      ? compositeOf(
          algorithm,
          known.map(({ value }) => value),
        )
      : fullChecksum(algorithm, await joinCrcs(algorithm, known));
  }
  if (type === 'FULL_OBJECT') return undefined;
  throw new S3Error('InvalidRequest', `Not all of the parts have a ${algorithm} checksum.`);
}

/** Reads the whole file. */
export async function checksumOfFile(
  fd: number,
  algorithm: ChecksumAlgorithm,
): Promise<ObjectChecksum> {
  const checksum = new Checksum(algorithm);
  const { sizeBytes } = statusOf(fd);
  const buffer = Buffer.allocUnsafeSlow(Math.min(READ_BYTES, Math.max(sizeBytes, 1)));
  for (let offset = 0; offset < sizeBytes;) {
    const { bytesRead } = await readBytes(fd, buffer, 0, buffer.length, offset);
    if (bytesRead === 0) break;
    await checksum.add([buffer.subarray(0, bytesRead)]);
    offset += bytesRead;
  }
  return fullChecksum(algorithm, checksum.digest());
}

/** @throws S3Error BadDigest unless the object's checksum is the given one, if one is given */
export function assertChecksum(actual: ObjectChecksum, given: ExpectedObject['checksum']): void {
  if (given === undefined || given.value === actual.value) return;
  throw new S3Error('BadDigest', `The object's ${actual.algorithm} checksum is not the given one.`);
}
