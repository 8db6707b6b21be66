import type { DiskEntry } from '../../../../shared/directory/disk-record.ts';
import { DIRECTORY_LIMITS } from '../../../../shared/directory/limits.ts';
import type { ObjectTarget } from '../http/target.ts';
import { S3Error } from '../protocol/errors.ts';
import type { Operation, S3Reply } from '../http/operation.ts';
import { element, renderAnswer } from '../protocol/xml.ts';
import { decodeToken, encodeToken } from './continuation-token.ts';
import { ownerElement } from './owner.ts';

/** @throws S3Error InvalidArgument */
function readMaxBuckets(query: ObjectTarget['query']): number {
  const text = query.get('max-buckets') ?? String(DIRECTORY_LIMITS.disksPerAccountMax);
  const count = /^\d{1,6}$/u.test(text) ? Number(text) : 0;
  if (count < 1 || count > DIRECTORY_LIMITS.disksPerAccountMax) {
    const range = `1 to ${DIRECTORY_LIMITS.disksPerAccountMax}`;
    throw new S3Error('InvalidArgument', `max-buckets must be a number from ${range}.`);
  }
  return count;
}

/**
 * ListBuckets: the disks that the credential reaches, by their ids.
 * @throws S3Error InvalidArgument
 */
export function listBuckets(
  disks: readonly DiskEntry[],
  { query }: Pick<ObjectTarget, 'query'>,
): S3Reply {
  const [prefix, region] = [query.get('prefix') ?? '', query.get('bucket-region')];
  const token = query.get('continuation-token');
  const after = token === undefined ? '' : decodeToken(token);
  const max = readMaxBuckets(query);
  const found = disks
    .map(({ record }) => record)
    .filter(({ id }) => id.startsWith(prefix) && id > after)
    .filter((record) => region === undefined || record.region === region)
    .toSorted((a, b) => (a.id < b.id ? -1 : 1));
  const page = found.slice(0, max);
  const last = page.at(-1);
  const buckets = page.map((record) =>
    element('Bucket', [
      element('Name', record.id),
      element('CreationDate', record.createdAt),
      element('BucketRegion', record.region),
    ]),
  );
  const [first] = disks;
  const xml = renderAnswer('ListAllMyBucketsResult', [
    first === undefined ? undefined : ownerElement(first),
    element('Buckets', buckets),
    prefix === '' ? undefined : element('Prefix', prefix),
    found.length > max && last !== undefined
      ? element('ContinuationToken', encodeToken(last.id))
      : undefined,
  ]);
  return { status: 200, xml };
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
