import type { DiskEntry } from '../../../shared/directory/disk-record.ts';
import { S3Error } from '../protocol/errors.ts';
import type { Operation, S3Reply } from '../http/operation.ts';
import { element, renderAnswer } from '../protocol/xml.ts';

/** ListBuckets: the disks that the credential reaches. */
export function listBuckets(disks: readonly DiskEntry[]): S3Reply {
  const organization = disks[0]?.record.organization ?? '';
  const buckets = disks.map(({ record }) =>
    element('Bucket', [
      element('Name', record.id),
      element('CreationDate', record.createdAt),
      element('BucketRegion', record.region),
    ]),
  );
  const owner = element('Owner', [
    element('ID', organization),
    element('DisplayName', organization),
  ]);
  return {
    status: 200,
    xml: renderAnswer('ListAllMyBucketsResult', [owner, element('Buckets', buckets)]),
  };
}

export const headBucket: Operation = async ({ disk }) => ({
  status: 200,
  headers: { 'x-amz-bucket-region': disk.record.region },
});

export const getBucketLocation: Operation = async ({ disk }) => ({
  status: 200,
  xml: renderAnswer('LocationConstraint', disk.record.region),
});

/** GetBucketVersioning, which tools call before they list: objects have no versions. */
export const getBucketVersioning: Operation = async () => ({
  status: 200,
  xml: renderAnswer('VersioningConfiguration', []),
});

/** CreateBucket, which tools call before they write: disks are created with the REST API. */
export const createBucket: Operation = () => Promise.reject(new S3Error('BucketAlreadyOwnedByYou'));
