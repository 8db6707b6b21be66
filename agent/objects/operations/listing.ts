import { LIMITS } from '../../../shared/limits.ts';
import { S3Error } from '../protocol/errors.ts';
import { type ObjectCall, type Operation, quoted } from '../http/operation.ts';
import { urlEncodeKey } from '../protocol/uri-escapes.ts';
import { element, renderAnswer, type XmlElement } from '../protocol/xml.ts';

/** The parameters that both object listings and the listing of uploads share. */
interface ListRequest {
  readonly prefix: string;
  readonly delimiter: '/' | undefined;
  readonly limit: number;
  readonly encodingType: string | undefined;
  /** Encodes a key as this listing requires. */
  readonly show: (key: string) => string;
}

/**
 * Reads a count from the query; values above the maximum are lowered.
 * @throws S3Error InvalidArgument
 */
export function readCount(
  { target }: ObjectCall,
  name: string,
  { fallback, max }: { fallback: number; max: number },
): number {
  const text = target.query.get(name);
  if (text === undefined || text === '') return fallback;
  if (!/^\d{1,10}$/u.test(text)) throw new S3Error('InvalidArgument', `${name} must be a number.`);
  return Math.min(Number(text), max);
}

function readRequest(call: ObjectCall, countName: string): ListRequest {
  const { query } = call.target;
  const delimiter = query.get('delimiter') ?? '';
  if (delimiter !== '' && delimiter !== '/') {
    throw new S3Error('NotImplemented', 'The only delimiter is "/": keys are paths of files.');
  }
  const encodingType = query.get('encoding-type') || undefined;
  if (encodingType !== undefined && encodingType !== 'url') {
    throw new S3Error('InvalidArgument', 'encoding-type must be url.');
  }
  const max = LIMITS.keysPerListingMax;
  return {
    prefix: query.get('prefix') ?? '',
    delimiter: delimiter === '' ? undefined : delimiter,
    limit: readCount(call, countName, { fallback: max, max }),
    encodingType,
    show: encodingType === undefined ? (key) => key : urlEncodeKey,
  };
}

interface KeyPage {
  readonly elements: readonly XmlElement[];
  readonly isTruncated: boolean;
  /** The last key or common prefix of the page, after which the next page begins. */
  readonly last: string;
}

async function listKeys(
  { store }: ObjectCall,
  { prefix, delimiter, limit, show }: ListRequest,
  after: string,
): Promise<KeyPage> {
  if (limit === 0) return { elements: [], isTruncated: false, last: '' };
  const options = { prefix, after, limit, ...(delimiter === undefined ? {} : { delimiter }) };
  const { entries, isTruncated } = await store.list(options);
  const elements = entries.map((entry) =>
    'prefix' in entry
      ? element('CommonPrefixes', [element('Prefix', show(entry.prefix))])
      : element('Contents', [
          element('Key', show(entry.key)),
          element('LastModified', entry.modifiedAt.toISOString()),
          element('ETag', quoted(entry.etag)),
          element('Size', entry.sizeBytes),
          element('StorageClass', 'STANDARD'),
        ]),
  );
  const last = entries.at(-1);
  return {
    elements,
    isTruncated,
    last: last === undefined ? '' : 'prefix' in last ? last.prefix : last.key,
  };
}

const optional = (name: string, value: string | undefined): XmlElement | undefined =>
  value === undefined ? undefined : element(name, value);

const encodeToken = (key: string): string => Buffer.from(key).toString('base64url');

function decodeToken(token: string): string {
  const key = Buffer.from(token, 'base64url').toString('utf8');
  if (key === '' || encodeToken(key) !== token) {
    throw new S3Error('InvalidArgument', 'The continuation token was not returned by a listing.');
  }
  return key;
}

/** ListObjectsV2. The continuation token takes precedence over start-after. */
export const listObjectsV2: Operation = async (call) => {
  const { target } = call;
  const request = readRequest(call, 'max-keys');
  const token = target.query.get('continuation-token');
  const startAfter = target.query.get('start-after');
  const after = token === undefined ? (startAfter ?? '') : decodeToken(token);
  const { elements, isTruncated, last } = await listKeys(call, request, after);
  const xml = renderAnswer('ListBucketResult', [
    element('Name', target.bucket),
    element('Prefix', request.show(request.prefix)),
    optional('Delimiter', request.delimiter),
    element('MaxKeys', request.limit),
    optional('EncodingType', request.encodingType),
    element('KeyCount', elements.length),
    element('IsTruncated', isTruncated),
    optional('ContinuationToken', token),
    isTruncated ? element('NextContinuationToken', encodeToken(last)) : undefined,
    optional('StartAfter', startAfter === undefined ? undefined : request.show(startAfter)),
    ...elements,
  ]);
  return { status: 200, xml };
};

/** ListObjects, the first version, which some tools still use. */
export const listObjectsV1: Operation = async (call) => {
  const { target } = call;
  const request = readRequest(call, 'max-keys');
  const marker = target.query.get('marker') ?? '';
  const { elements, isTruncated, last } = await listKeys(call, request, marker);
  const xml = renderAnswer('ListBucketResult', [
    element('Name', target.bucket),
    element('Prefix', request.show(request.prefix)),
    element('Marker', request.show(marker)),
    optional('Delimiter', request.delimiter),
    element('MaxKeys', request.limit),
    optional('EncodingType', request.encodingType),
    element('IsTruncated', isTruncated),
    isTruncated ? element('NextMarker', request.show(last)) : undefined,
    ...elements,
  ]);
  return { status: 200, xml };
};

export const listMultipartUploads: Operation = async (call) => {
  const { target, store } = call;
  const { prefix, delimiter, limit, encodingType, show } = readRequest(call, 'max-uploads');
  const keyMarker = target.query.get('key-marker') ?? '';
  const uploadIdMarker = target.query.get('upload-id-marker') ?? '';
  const found = await store.uploads.list({ prefix, delimiter, keyMarker, uploadIdMarker, limit });
  const last = found.uploads.at(-1);
  const xml = renderAnswer('ListMultipartUploadsResult', [
    element('Bucket', target.bucket),
    element('KeyMarker', show(keyMarker)),
    element('UploadIdMarker', uploadIdMarker),
    element('NextKeyMarker', show(last?.key ?? '')),
    element('NextUploadIdMarker', last?.uploadId ?? ''),
    element('Prefix', show(prefix)),
    optional('Delimiter', delimiter),
    element('MaxUploads', limit),
    optional('EncodingType', encodingType),
    element('IsTruncated', found.isTruncated),
    ...found.uploads.map(({ key, uploadId, initiatedAt }) =>
      element('Upload', [
        element('Key', show(key)),
        element('UploadId', uploadId),
        element('StorageClass', 'STANDARD'),
        element('Initiated', initiatedAt.toISOString()),
      ]),
    ),
    ...found.commonPrefixes.map((each) =>
      element('CommonPrefixes', [element('Prefix', show(each))]),
    ),
  ]);
  return { status: 200, xml };
};
