import { EDGE_LIMITS } from '../../limits.ts';
import { checksumKindElements } from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import { type ObjectCall, type Operation, quoted } from '../http/operation.ts';
import { urlEncodeKey } from '../protocol/uri-escapes.ts';
import { element, renderAnswer, type XmlElement } from '../protocol/xml.ts';
import { decodeToken, encodeToken } from './continuation-token.ts';
import { ownerElement } from './owner.ts';

/** The parameters that both object listings and the listing of uploads share. */
interface ListRequest {
  readonly prefix: string;
  readonly delimiter: string | undefined;
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
  const encodingType = query.get('encoding-type') || undefined;
  if (encodingType !== undefined && encodingType !== 'url') {
    throw new S3Error('InvalidArgument', 'encoding-type must be url.');
  }
  const max = EDGE_LIMITS.keysPerListingMax;
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
  /** The key or common prefix after which the next page begins. */
  readonly last: string;
}

async function listKeys(
  { store, disk }: ObjectCall,
  { prefix, delimiter, limit, show }: ListRequest,
  { after, withOwner }: { readonly after: string; readonly withOwner: boolean },
): Promise<KeyPage> {
  if (limit === 0) return { elements: [], isTruncated: false, last: '' };
  const options = { prefix, after, limit, ...(delimiter === undefined ? {} : { delimiter }) };
  const { entries, isTruncated, last } = await store.list(options);
  const owner = withOwner ? ownerElement(disk) : undefined;
  const elements = entries.map((entry) =>
    'prefix' in entry
      ? element('CommonPrefixes', [element('Prefix', show(entry.prefix))])
      : element('Contents', [
          element('Key', show(entry.key)),
          element('LastModified', entry.modifiedAt.toISOString()),
          element('ETag', quoted(entry.etag)),
          ...checksumKindElements(entry.checksum),
          element('Size', entry.sizeBytes),
          owner,
          element('StorageClass', 'STANDARD'),
        ]),
  );
  return { elements, isTruncated, last };
}

/** @throws S3Error InvalidArgument */
function readFlag({ target }: ObjectCall, name: string): boolean {
  const text = target.query.get(name) ?? 'false';
  if (!/^(?:true|false)$/iu.test(text)) {
    throw new S3Error('InvalidArgument', `${name} must be true or false.`);
  }
  return text.toLowerCase() === 'true';
}

const optional = (name: string, value: string | undefined): XmlElement | undefined =>
  value === undefined ? undefined : element(name, value);

/** ListObjectsV2. The continuation token takes precedence over start-after. */
export const listObjectsV2: Operation = async (call) => {
  const { target } = call;
  const request = readRequest(call, 'max-keys');
  const token = target.query.get('continuation-token');
  const startAfter = target.query.get('start-after');
  const after = token === undefined ? (startAfter ?? '') : decodeToken(token);
  const withOwner = readFlag(call, 'fetch-owner');
  const { elements, isTruncated, last } = await listKeys(call, request, { after, withOwner });
  const xml = renderAnswer('ListBucketResult', [
    element('Name', target.bucket),
    element('Prefix', request.show(request.prefix)),
    optional('Delimiter', request.delimiter && request.show(request.delimiter)),
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
  const page = { after: marker, withOwner: true };
  const { elements, isTruncated, last } = await listKeys(call, request, page);
  const xml = renderAnswer('ListBucketResult', [
    element('Name', target.bucket),
    element('Prefix', request.show(request.prefix)),
    element('Marker', request.show(marker)),
    optional('Delimiter', request.delimiter && request.show(request.delimiter)),
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
  const xml = renderAnswer('ListMultipartUploadsResult', [
    element('Bucket', target.bucket),
    element('KeyMarker', show(keyMarker)),
    element('UploadIdMarker', uploadIdMarker),
    element('NextKeyMarker', show(found.nextKeyMarker)),
    element('NextUploadIdMarker', found.nextUploadIdMarker),
    element('Prefix', show(prefix)),
    optional('Delimiter', delimiter && show(delimiter)),
    element('MaxUploads', limit),
    optional('EncodingType', encodingType),
    element('IsTruncated', found.isTruncated),
    ...found.uploads.map(({ key, uploadId, initiatedAt, checksum }) =>
      element('Upload', [
        element('Key', show(key)),
        element('UploadId', uploadId),
        ownerElement(call.disk, 'Initiator'),
        ownerElement(call.disk),
        element('StorageClass', 'STANDARD'),
        element('Initiated', initiatedAt.toISOString()),
        ...checksumKindElements(checksum),
      ]),
    ),
    ...found.commonPrefixes.map((each) =>
      element('CommonPrefixes', [element('Prefix', show(each))]),
    ),
  ]);
  return { status: 200, xml };
};
