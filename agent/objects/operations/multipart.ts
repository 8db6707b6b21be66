import { LIMITS } from '../../../shared/limits.ts';
import { readAttributes } from '../http/attributes.ts';
import { S3Error } from '../protocol/errors.ts';
import { type ObjectCall, type Operation, quoted } from '../http/operation.ts';
import { xmlBody } from '../http/request-body.ts';
import { parseCompleteMultipartUpload } from '../http/request-documents.ts';
import { element, renderAnswer } from '../protocol/xml.ts';
import { checkWritePreconditions } from '../http/write-preconditions.ts';
import { readCount } from './listing.ts';

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
  if (number < 1 || number > LIMITS.partsPerUploadMax) {
    throw new S3Error('InvalidArgument', `partNumber must be 1 to ${LIMITS.partsPerUploadMax}.`);
  }
  return number;
}

export const createMultipartUpload: Operation = async (call) => {
  const { bucket, key } = call.target;
  const uploadId = await call.store.uploads.create(key, readAttributes(call));
  const xml = renderAnswer('InitiateMultipartUploadResult', [
    element('Bucket', bucket),
    element('Key', key),
    element('UploadId', uploadId),
  ]);
  return { status: 200, xml };
};

export const uploadPart: Operation = async (call) => {
  const uploadId = requiredParameter(call, 'uploadId');
  const partNumber = readPartNumber(call);
  const body = call.body.read({ bytesMax: LIMITS.objectPutBytesMax });
  const { uploads } = call.store;
  const { etag } = await uploads.putPart(uploadId, call.target.key, partNumber, body);
  return { status: 200, headers: { etag: quoted(etag) } };
};

export const completeMultipartUpload: Operation = async (call) => {
  const { bucket, key } = call.target;
  const uploadId = requiredParameter(call, 'uploadId');
  const document = await call.body.readAll({ ...xmlBody, checksumsOfObject: true });
  const parts = parseCompleteMultipartUpload(document);
  const { etag } = await call.store.uploads.complete(uploadId, key, parts, (present) =>
    checkWritePreconditions(call.headers, present),
  );
  const xml = renderAnswer('CompleteMultipartUploadResult', [
    element('Location', `/${bucket}/${key}`),
    element('Bucket', bucket),
    element('Key', key),
    element('ETag', quoted(etag)),
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
  const max = LIMITS.keysPerListingMax;
  const limit = readCount(call, 'max-parts', { fallback: max, max });
  const after = readCount(call, 'part-number-marker', {
    fallback: 0,
    max: LIMITS.partsPerUploadMax,
  });
  const { parts, isTruncated } = await call.store.uploads.listParts(uploadId, key, {
    after,
    limit,
  });
  const xml = renderAnswer('ListPartsResult', [
    element('Bucket', bucket),
    element('Key', key),
    element('UploadId', uploadId),
    element('PartNumberMarker', after),
    element('NextPartNumberMarker', parts.at(-1)?.partNumber ?? after),
    element('MaxParts', limit),
    element('IsTruncated', isTruncated),
    ...parts.map(({ partNumber, etag, sizeBytes, modifiedAt }) =>
      element('Part', [
        element('PartNumber', partNumber),
        element('LastModified', modifiedAt.toISOString()),
        element('ETag', quoted(etag)),
        element('Size', sizeBytes),
      ]),
    ),
  ]);
  return { status: 200, xml };
};
