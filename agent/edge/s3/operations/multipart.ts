import { EDGE_LIMITS } from '../../limits.ts';
import { readAttributes } from '../http/attributes.ts';
import {
  CHECKSUM_ALGORITHMS,
  checksumElementName,
  checksumElements,
  checksumKindElements,
  checksumHeader,
  decodeChecksum,
  readChecksumKind,
  readChecksumType,
} from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import { header, type ObjectCall, type Operation, quoted } from '../http/operation.ts';
import { xmlBody } from '../http/request-body.ts';
import { parseCompleteMultipartUpload } from '../http/request-documents.ts';
import { element, renderAnswer, type XmlElement } from '../protocol/xml.ts';
import type { ExpectedObject } from '../store/choose-parts.ts';
import type { PartChecksum } from '../store/upload-files.ts';
import { writePrecondition } from '../http/write-preconditions.ts';
import { readCount } from './listing.ts';
import { ownerElement } from './owner.ts';

/** @throws S3Error InvalidArgument */
export function requiredParameter({ target }: ObjectCall, name: string): string {
  const value = target.query.get(name) ?? '';
  if (value === '') throw new S3Error('InvalidArgument', `${name} is missing.`);
  return value;
}

/** @throws S3Error InvalidArgument unless it is a number from 1 to 10,000 */
export function readPartNumber(call: ObjectCall): number {
  const text = requiredParameter(call, 'partNumber');
  const number = /^\d{1,5}$/u.test(text) ? Number(text) : 0;
  if (number < 1 || number > EDGE_LIMITS.partsPerUploadMax) {
    throw new S3Error(
      'InvalidArgument',
      `partNumber must be 1 to ${EDGE_LIMITS.partsPerUploadMax}.`,
    );
  }
  return number;
}

export const createMultipartUpload: Operation = async (call) => {
  const { bucket, key } = call.target;
  const checksum = readChecksumKind(
    header(call, 'x-amz-checksum-algorithm'),
    header(call, 'x-amz-checksum-type'),
  );
  const uploadId = await call.store.uploads.create(key, readAttributes(call), checksum);
  const xml = renderAnswer('InitiateMultipartUploadResult', [
    element('Bucket', bucket),
    element('Key', key),
    element('UploadId', uploadId),
  ]);
  if (checksum === undefined) return { status: 200, xml };
  const headers = {
    'x-amz-checksum-algorithm': checksum.algorithm.toUpperCase(),
    'x-amz-checksum-type': checksum.type,
  };
  return { status: 200, headers, xml };
};

/** The header that shows the checksum of a part. */
const partHeaders = (checksum: PartChecksum | undefined): Record<string, string> =>
  checksum === undefined
    ? {}
    : { [checksumHeader(checksum.algorithm)]: checksum.value.toString('base64') };

/** The element that shows the checksum of a part. */
export const partChecksumElement = (checksum: PartChecksum | undefined): XmlElement | undefined =>
  checksum && element(checksumElementName(checksum.algorithm), checksum.value.toString('base64'));

export const uploadPart: Operation = async (call) => {
  const uploadId = requiredParameter(call, 'uploadId');
  const partNumber = readPartNumber(call);
  const { bytes, ...checks } = call.body.stream({ bytesMax: EDGE_LIMITS.objectPutBytesMax });
  const { uploads } = call.store;
  const part = await uploads.putPart(uploadId, call.target.key, partNumber, bytes, checks);
  return { status: 200, headers: { etag: quoted(part.etag), ...partHeaders(part.checksum) } };
};

/** The object that the headers of a completion describe. */
function readExpected(call: ObjectCall): ExpectedObject {
  const size = header(call, 'x-amz-mp-object-size');
  if (size !== undefined && !/^\d{1,15}$/u.test(size)) {
    throw new S3Error('InvalidArgument', 'x-amz-mp-object-size must be a number.');
  }
  const checksums = CHECKSUM_ALGORITHMS.flatMap((algorithm) => {
    const value = header(call, checksumHeader(algorithm));
    return value === undefined ? [] : [{ algorithm, value }];
  });
  if (checksums.length > 1) {
    throw new S3Error('InvalidRequest', 'Only one checksum of the object may be given.');
  }
  const [checksum] = checksums;
  if (checksum !== undefined) {
    decodeChecksum(checksum.algorithm, checksum.value.replace(/-\d{1,5}$/u, ''));
  }
  return {
    sizeBytes: size === undefined ? undefined : Number(size),
    checksumType: readChecksumType(header(call, 'x-amz-checksum-type')),
    checksum,
  };
}

export const completeMultipartUpload: Operation = async (call) => {
  const { bucket, key } = call.target;
  const uploadId = requiredParameter(call, 'uploadId');
  const document = await call.body.readAll({ ...xmlBody, checksumsOfObject: true });
  const parts = parseCompleteMultipartUpload(document);
  const { etag, checksum } = await call.store.uploads.complete(
    ...([uploadId, key, parts] as const),
    writePrecondition(call.headers),
    readExpected(call),
  );
  const xml = renderAnswer('CompleteMultipartUploadResult', [
    element('Location', `/${bucket}/${key}`),
    element('Bucket', bucket),
    element('Key', key),
    element('ETag', quoted(etag)),
    ...checksumElements(checksum),
  ]);
  return { status: 200, xml };
};

export const abortMultipartUpload: Operation = async (call) => {
  await call.store.uploads.abort(requiredParameter(call, 'uploadId'), call.target.key);
  return { status: 204 };
};

export const listParts: Operation = async (call) => {
  const { bucket, key } = call.target;
  const uploadId = requiredParameter(call, 'uploadId');
  const max = EDGE_LIMITS.keysPerListingMax;
  const limit = readCount(call, 'max-parts', { fallback: max, max });
  const after = readCount(call, 'part-number-marker', {
    fallback: 0,
    max: EDGE_LIMITS.partsPerUploadMax,
  });
  const { parts, isTruncated, checksum } = await call.store.uploads.listParts(uploadId, key, {
    after,
    limit,
  });
  const xml = renderAnswer('ListPartsResult', [
    element('Bucket', bucket),
    element('Key', key),
    element('UploadId', uploadId),
    ownerElement(call.disk, 'Initiator'),
    ownerElement(call.disk),
    element('StorageClass', 'STANDARD'),
    element('PartNumberMarker', after),
    element('NextPartNumberMarker', parts.at(-1)?.partNumber ?? after),
    element('MaxParts', limit),
    element('IsTruncated', isTruncated),
    ...checksumKindElements(checksum),
    ...parts.map(({ partNumber, etag, sizeBytes, modifiedAt, ...part }) =>
      element('Part', [
        element('PartNumber', partNumber),
        element('LastModified', modifiedAt.toISOString()),
        element('ETag', quoted(etag)),
        element('Size', sizeBytes),
        partChecksumElement(part.checksum),
      ]),
    ),
  ]);
  return { status: 200, xml };
};
