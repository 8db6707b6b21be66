import { EDGE_LIMITS } from '../../limits.ts';
import { header, type ObjectCall, type Operation } from '../http/operation.ts';
import { assertVersion } from '../http/version-id.ts';
import { checksumElementName, checksumElements } from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import { element, renderAnswer, type XmlElement } from '../protocol/xml.ts';
import type { OpenObject } from '../store/object-info.ts';
import { readPartTable } from '../store/part-table.ts';

const ATTRIBUTES = ['ETag', 'Checksum', 'ObjectParts', 'StorageClass', 'ObjectSize'] as const;
type Attribute = (typeof ATTRIBUTES)[number];

/** @throws S3Error InvalidArgument */
function readNames(call: ObjectCall): ReadonlySet<string> {
  const text = header(call, 'x-amz-object-attributes') ?? '';
  const names = text.split(',').map((name) => name.trim());
  const unknown = names.find((name) => !(ATTRIBUTES as readonly string[]).includes(name));
  if (unknown === undefined) return new Set(names);
  const known = ATTRIBUTES.join(', ');
  throw new S3Error('InvalidArgument', `x-amz-object-attributes must list some of ${known}.`);
}

/** @throws S3Error InvalidArgument */
function readNumber(call: ObjectCall, name: string, fallback: number): number {
  const text = header(call, name);
  if (text === undefined) return fallback;
  if (!/^\d{1,10}$/u.test(text)) throw new S3Error('InvalidArgument', `${name} must be a number.`);
  return Number(text);
}

/** A page of the parts. Without their sizes only their number is told. */
async function partElements(call: ObjectCall, file: OpenObject): Promise<XmlElement[]> {
  const limit = Math.min(
    readNumber(call, 'x-amz-max-parts', EDGE_LIMITS.keysPerListingMax),
    EDGE_LIMITS.keysPerListingMax,
  );
  const marker = readNumber(call, 'x-amz-part-number-marker', 0);
  const count = element('PartsCount', file.partCount);
  const parts = await readPartTable(file.fd, file.etag);
  if (parts === undefined) return [count];
  const page = parts.slice(marker, marker + limit);
  return [
    count,
    element('PartNumberMarker', marker),
    element('NextPartNumberMarker', marker + page.length),
    element('MaxParts', limit),
    element('IsTruncated', marker + page.length < parts.length),
    ...page.map(({ sizeBytes, checksum }, index) =>
      element('Part', [
        element('PartNumber', marker + index + 1),
        element('Size', sizeBytes),
        checksum && element(checksumElementName(checksum.algorithm), checksum.value),
      ]),
    ),
  ];
}

/** GetObjectAttributes: what is known about an object, without its bytes and metadata. */
export const getObjectAttributes: Operation = async (call) => {
  assertVersion(call.target.query.get('versionId'));
  const names = readNames(call);
  await using opened = new AsyncDisposableStack();
  const file = await call.store.open(call.target.key);
  opened.defer(() => file.close());
  const { etag, sizeBytes, modifiedAt, checksum, partCount } = file;
  const shown = (name: Attribute, content: string | number | readonly XmlElement[]) =>
    names.has(name) ? element(name, content) : undefined;
  const xml = renderAnswer('GetObjectAttributesResponse', [
    shown('ETag', etag),
    checksum && shown('Checksum', checksumElements(checksum)),
    partCount > 0 ? shown('ObjectParts', await partElements(call, file)) : undefined,
    shown('StorageClass', 'STANDARD'),
    shown('ObjectSize', sizeBytes),
  ]);
  return { status: 200, headers: { 'last-modified': modifiedAt.toUTCString() }, xml };
};
