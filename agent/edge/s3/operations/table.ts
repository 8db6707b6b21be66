import { S3Error } from '../protocol/errors.ts';
import type { Operation } from '../http/operation.ts';
import type { ObjectHeaders } from '../http/request-headers.ts';
import type { ObjectTarget } from '../http/target.ts';
import { type AcceptedFields, assertAccepted } from './accepted-fields.ts';
import { createBucket, getBucketLocation, getBucketVersioning, headBucket } from './buckets.ts';
import { copyObject, copyPart } from './copies.ts';
import { listMultipartUploads, listObjectsV1, listObjectsV2 } from './listing.ts';
import {
  abortMultipartUpload,
  completeMultipartUpload,
  createMultipartUpload,
  listParts,
  uploadPart,
} from './multipart.ts';
import { getObjectAttributes } from './object-attributes.ts';
import {
  appendObject,
  deleteObject,
  deleteObjects,
  getObject,
  getObjectTagging,
  headObject,
  putObject,
} from './objects.ts';
import { postObject } from './post-object.ts';

/** Headers that are stored with an object, or become properties of its file. */
const STORED = [
  ...['content-type', 'content-disposition', 'content-encoding', 'content-language'],
  ...['cache-control', 'expires', 'x-amz-meta-*', 'x-amz-acl', 'x-amz-storage-class'],
  ...['mode', 'uid', 'gid'].flatMap((name) => [`x-archil-${name}`, `x-service-${name}`]),
];
/** Headers with which a body is verified. */
const CHECKED = [
  ...['crc32', 'crc32c', 'crc64nvme', 'sha1', 'sha256'].map((name) => `x-amz-checksum-${name}`),
  ...['content-md5', 'x-amz-sdk-checksum-algorithm'],
];
const CONDITIONS = ['if-match', 'if-none-match', 'if-unmodified-since'];
const READ: AcceptedFields = {
  headers: [...CONDITIONS, 'if-modified-since', 'if-range', 'range', 'x-amz-checksum-mode'],
  query: [
    ...['cache-control', 'content-disposition', 'content-encoding', 'content-language'],
    ...['content-type', 'expires'],
  ]
    .map((name) => `response-${name}`)
    .concat('partNumber', 'versionId'),
};
const SOURCE = [
  ...['x-amz-copy-source', 'x-amz-source-expected-bucket-owner'],
  ...['match', 'none-match', 'modified-since', 'unmodified-since'].map(
    (condition) => `x-amz-copy-source-if-${condition}`,
  ),
];
const LISTING = ['delimiter', 'encoding-type', 'prefix'];

/** An operation and the requests that ask for it. */
interface Row extends NamedOperation {
  readonly method: string;
  /** The query parameter that selects the operation; without one any request of the method does. */
  readonly flag?: string;
  /** The values that the flag may have; absent: any. */
  readonly flagValues?: readonly string[];
  /** The header that selects the operation. */
  readonly header?: string;
  readonly accepts: AcceptedFields;
}

/** ListBuckets, which concerns no disk, so that the gateway carries it out itself. */
export const LIST_BUCKETS = {
  name: 'ListBuckets',
  accepts: { query: ['bucket-region', 'continuation-token', 'max-buckets', 'prefix'] },
};

/** The first row that matches applies. */
const bucketOperations: readonly Row[] = [
  {
    ...{ method: 'GET', flag: 'uploads' },
    ...{ name: 'ListMultipartUploads', operation: listMultipartUploads },
    accepts: { query: [...LISTING, 'key-marker', 'max-uploads', 'upload-id-marker'] },
  },
  {
    ...{ method: 'GET', flag: 'location', name: 'GetBucketLocation', operation: getBucketLocation },
    accepts: {},
  },
  {
    ...{ method: 'GET', flag: 'versioning' },
    ...{ name: 'GetBucketVersioning', operation: getBucketVersioning, accepts: {} },
  },
  {
    ...{ method: 'GET', flag: 'list-type', flagValues: ['2'] },
    ...{ name: 'ListObjectsV2', operation: listObjectsV2 },
    accepts: {
      query: [...LISTING, 'continuation-token', 'fetch-owner', 'max-keys', 'start-after'],
    },
  },
  {
    ...{ method: 'GET', name: 'ListObjects', operation: listObjectsV1 },
    accepts: { query: [...LISTING, 'marker', 'max-keys'] },
  },
  { method: 'HEAD', name: 'HeadBucket', operation: headBucket, accepts: {} },
  {
    ...{
      method: 'POST',
      flag: 'delete',
      name: 'DeleteObjects',
      changesObjects: true,
      onlyRemoves: true,
      operation: deleteObjects,
    },
    accepts: { headers: CHECKED },
  },
  // Its fields are declared where its form is read.
  {
    ...{ method: 'POST', name: 'PostObject', changesObjects: true, accepts: {}, takesForm: true },
    operation: postObject({ headers: [...STORED, ...CHECKED] }),
  },
  {
    ...{ method: 'PUT', name: 'CreateBucket', operation: createBucket },
    accepts: { headers: ['x-amz-acl', ...CHECKED] },
  },
];

const objectOperations: readonly Row[] = [
  {
    ...{ method: 'GET', flag: 'uploadId', name: 'ListParts', operation: listParts },
    accepts: { query: ['max-parts', 'part-number-marker'] },
  },
  {
    ...{ method: 'GET', flag: 'attributes' },
    ...{ name: 'GetObjectAttributes', operation: getObjectAttributes },
    accepts: {
      headers: ['x-amz-max-parts', 'x-amz-object-attributes', 'x-amz-part-number-marker'],
      query: ['versionId'],
    },
  },
  {
    ...{ method: 'GET', flag: 'tagging', name: 'GetObjectTagging', operation: getObjectTagging },
    accepts: { query: ['versionId'] },
  },
  { method: 'GET', name: 'GetObject', operation: getObject, accepts: READ },
  { method: 'HEAD', name: 'HeadObject', operation: headObject, accepts: READ },
  {
    ...{ method: 'PUT', flag: 'uploadId', header: 'x-amz-copy-source' },
    ...{ name: 'UploadPartCopy', operation: copyPart },
    accepts: { headers: [...SOURCE, 'x-amz-copy-source-range'], query: ['partNumber'] },
  },
  {
    ...{ method: 'PUT', flag: 'uploadId', name: 'UploadPart', operation: uploadPart },
    accepts: { headers: CHECKED, query: ['partNumber'] },
  },
  {
    ...{ method: 'PUT', flag: 'append', flagValues: ['true', ''], name: 'AppendObject' },
    ...{ operation: appendObject, changesObjects: true },
    accepts: { headers: [...STORED, ...CHECKED] },
  },
  {
    ...{ method: 'PUT', header: 'x-amz-copy-source', name: 'CopyObject' },
    ...{ operation: copyObject, changesObjects: true },
    accepts: {
      headers: [
        ...[...STORED, ...SOURCE, ...CONDITIONS],
        ...['x-amz-checksum-algorithm', 'x-amz-metadata-directive', 'x-amz-tagging-directive'],
      ],
    },
  },
  {
    ...{ method: 'PUT', name: 'PutObject', operation: putObject, changesObjects: true },
    accepts: { headers: [...STORED, ...CHECKED, ...CONDITIONS] },
  },
  {
    ...{ method: 'POST', flag: 'uploads' },
    ...{ name: 'CreateMultipartUpload', operation: createMultipartUpload },
    accepts: { headers: [...STORED, 'x-amz-checksum-algorithm', 'x-amz-checksum-type'] },
  },
  {
    ...{ method: 'POST', flag: 'uploadId' },
    ...{ name: 'CompleteMultipartUpload', operation: completeMultipartUpload },
    changesObjects: true,
    accepts: {
      headers: [...CHECKED, ...CONDITIONS, 'x-amz-checksum-type', 'x-amz-mp-object-size'],
    },
  },
  {
    ...{ method: 'DELETE', flag: 'uploadId' },
    ...{ name: 'AbortMultipartUpload', operation: abortMultipartUpload, accepts: {} },
  },
  {
    ...{ method: 'DELETE', name: 'DeleteObject', changesObjects: true, operation: deleteObject },
    accepts: {
      headers: ['if-match', 'x-amz-if-match-last-modified-time', 'x-amz-if-match-size'],
      query: ['versionId'],
    },
  },
];

/** All operations on a bucket and on an object. */
export const operationRows = { bucket: bucketOperations, object: objectOperations } as const;

export interface NamedOperation {
  readonly name: string;
  readonly operation: Operation;
  /** True when callers see a change of the disk. */
  readonly changesObjects?: true;
  /** True when it takes a method that adds to the disk otherwise, and does not. */
  readonly onlyRemoves?: true;
  /** True when the body is a form, whose fields may carry the credentials. */
  readonly takesForm?: true;
}

/** The operation that a request asks for, or the reason why there is none. */
type Selection = Row | S3Error;

/**
 * Selects the operation that a request asks for. This comes before authentication, because a
 * credential is verified for one operation; an unknown operation is refused after it.
 */
export function selectOperation(
  method: string,
  { key, query }: Pick<ObjectTarget, 'key' | 'query'>,
  headers: ObjectHeaders,
): Selection {
  const rows = key === '' ? bucketOperations : objectOperations;
  const ofMethod = rows.filter((row) => row.method === method);
  if (ofMethod.length === 0) return new S3Error('MethodNotAllowed');
  const selected = ofMethod.find(
    ({ flag, header }) =>
      (flag === undefined || query.has(flag)) &&
      (header === undefined || headers.values[header] !== undefined),
  );
  return selected ?? new S3Error('NotImplemented');
}

/** Whether the fields of the request's form may carry its credentials. */
export const takesForm = (selected: Selection): boolean =>
  !(selected instanceof S3Error) && selected.takesForm === true;

/**
 * The selected operation, unless it would ignore a part of the request.
 * @throws S3Error NotImplemented, MethodNotAllowed, InvalidArgument
 */
export function acceptOperation(
  selected: Selection,
  target: Pick<ObjectTarget, 'query' | 'repeated'>,
  headers: ObjectHeaders,
): NamedOperation {
  if (selected instanceof S3Error) throw selected;
  assertAccepted(selected, headers, target);
  const { flag = '', flagValues } = selected;
  if (flagValues?.includes(target.query.get(flag) ?? '') === false) {
    throw new S3Error('InvalidArgument', `${flag} must be ${flagValues[0]}.`);
  }
  return selected;
}

/** Whether a request adds to the disk. Deleting does not: it is how a full disk is emptied. */
export const addsToDisk = (method: string, { onlyRemoves }: NamedOperation): boolean =>
  (method === 'PUT' || method === 'POST') && onlyRemoves !== true;
