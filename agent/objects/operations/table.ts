import { S3Error } from '../protocol/errors.ts';
import { header, type Operation } from '../http/operation.ts';
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
import {
  appendObject,
  deleteObject,
  deleteObjects,
  getObject,
  headObject,
  putObject,
} from './objects.ts';

/** Query flags of S3 operations that this server does not have. */
const NOT_BUILT = new Set([
  ...['accelerate', 'acl', 'analytics', 'attributes', 'cors', 'encryption', 'intelligent-tiering'],
  ...['inventory', 'legal-hold', 'lifecycle', 'logging', 'metrics', 'notification'],
  ...['object-lock', 'ownershipControls', 'policy', 'policyStatus', 'publicAccessBlock'],
  ...['renameObject', 'replication', 'requestPayment', 'restore', 'retention', 'select'],
  ...['session', 'tagging', 'torrent', 'versions', 'website'],
]);

const unlessCopied =
  (operation: Operation, copy: Operation): Operation =>
  (call) =>
    (header(call, 'x-amz-copy-source') === undefined ? operation : copy)(call);

type Row = readonly [method: string, flag: string, name: string, operation: Operation];

/** The first row whose method and query flag match applies; an empty flag always matches. */
const bucketOperations: readonly Row[] = [
  ['GET', 'uploads', 'ListMultipartUploads', listMultipartUploads],
  ['GET', 'location', 'GetBucketLocation', getBucketLocation],
  ['GET', 'versioning', 'GetBucketVersioning', getBucketVersioning],
  ['GET', 'list-type', 'ListObjectsV2', listObjectsV2],
  ['GET', '', 'ListObjects', listObjectsV1],
  ['HEAD', '', 'HeadBucket', headBucket],
  ['POST', 'delete', 'DeleteObjects', deleteObjects],
  ['PUT', '', 'CreateBucket', createBucket],
];

const objectOperations: readonly Row[] = [
  ['GET', 'uploadId', 'ListParts', listParts],
  ['GET', '', 'GetObject', getObject],
  ['HEAD', '', 'HeadObject', headObject],
  ['PUT', 'uploadId', 'UploadPart', unlessCopied(uploadPart, copyPart)],
  ['PUT', 'append', 'AppendObject', appendObject],
  ['PUT', '', 'PutObject', unlessCopied(putObject, copyObject)],
  ['POST', 'uploads', 'CreateMultipartUpload', createMultipartUpload],
  ['POST', 'uploadId', 'CompleteMultipartUpload', completeMultipartUpload],
  ['DELETE', 'uploadId', 'AbortMultipartUpload', abortMultipartUpload],
  ['DELETE', '', 'DeleteObject', deleteObject],
];

export interface NamedOperation {
  readonly name: string;
  readonly operation: Operation;
}

/**
 * Finds the operation that a request asks for.
 * @throws S3Error NotImplemented, MethodNotAllowed
 */
export function findOperation(
  method: string,
  { key, query }: { key: string; query: ReadonlyMap<string, string> },
): NamedOperation {
  for (const flag of query.keys()) {
    if (NOT_BUILT.has(flag)) {
      throw new S3Error('NotImplemented', `There is no ${flag} on this server.`);
    }
  }
  const rows = key === '' ? bucketOperations : objectOperations;
  const ofMethod = rows.filter((row) => row[0] === method);
  if (ofMethod.length === 0) throw new S3Error('MethodNotAllowed');
  const found = ofMethod.find((row) => row[1] === '' || query.has(row[1]));
  if (found === undefined) throw new S3Error('NotImplemented');
  return { name: found[2], operation: found[3] };
}

/** Whether a request of this method adds to the disk; deleting does not. */
export const isWrite = (method: string): boolean => method === 'PUT' || method === 'POST';
