import { EDGE_LIMITS } from '../../limits.ts';
import { readAttributes } from '../http/attributes.ts';
import { Checksum, checksumElements, readAlgorithm } from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import {
  header,
  type ObjectCall,
  type Operation,
  quoted,
  type SourceObject,
} from '../http/operation.ts';
import type { ObjectInfo, WriteAttributes } from '../store/object-info.ts';
import { readTarget } from '../http/target.ts';
import { assertVersion } from '../http/version-id.ts';
import { element, renderAnswer, type XmlElement } from '../protocol/xml.ts';
import { checkCopySource, writePrecondition } from '../http/write-preconditions.ts';
import { partChecksumElement, readPartNumber, requiredParameter } from './multipart.ts';

interface Source {
  readonly bucket: string;
  readonly key: string;
  readonly info: ObjectInfo;
  readonly read: SourceObject['read'];
}

/** Opens the source of a copy, until the call ends. */
async function openSource(call: ObjectCall): Promise<Source> {
  const text = header(call, 'x-amz-copy-source') ?? '';
  const { bucket, key, query } = readTarget(text.startsWith('/') ? text : `/${text}`);
  if (key === '') throw new S3Error('InvalidArgument', 'x-amz-copy-source must name an object.');
  assertVersion(query.get('versionId'));
  const others = [...query.keys()].filter((name) => name !== 'versionId');
  if (others.length > 0) {
    throw new S3Error('InvalidArgument', 'x-amz-copy-source has a parameter besides versionId.');
  }
  const range = header(call, 'x-amz-copy-source-range');
  const { info, read } = await call.openSource({ bucket, key, range });
  checkCopySource(call.headers, info);
  return { bucket, key, info, read };
}

function attributesOfCopy(call: ObjectCall, { bucket, key, info }: Source): WriteAttributes {
  const given = readAttributes(call);
  const directive = header(call, 'x-amz-metadata-directive') ?? 'COPY';
  if (directive === 'REPLACE') return given;
  if (directive !== 'COPY')
    throw new S3Error('InvalidArgument', 'x-amz-metadata-directive must be COPY or REPLACE.');
  if (bucket === call.target.bucket && key === call.target.key) {
    throw new S3Error('InvalidRequest', 'A copy onto itself must replace the metadata.');
  }
  // Content-Type alone is passed over: clients name the type of a body that they do not have.
  if (Object.keys(given.headers ?? {}).length > 0) {
    throw new S3Error('InvalidRequest', 'Other metadata needs x-amz-metadata-directive: REPLACE.');
  }
  const { contentType, mode, uid, gid, headers } = info;
  return { mode, uid, gid, ...given, contentType, headers };
}

const copyResult = (
  name: string,
  { etag, modifiedAt }: Pick<ObjectInfo, 'etag' | 'modifiedAt'>,
  checksums: readonly (XmlElement | undefined)[],
) =>
  renderAnswer(name, [
    element('LastModified', modifiedAt.toISOString()),
    element('ETag', quoted(etag)),
    ...checksums,
  ]);

/** A copy has the kind of checksum that the request asks for, or else that of its source. */
function checksumOfCopy(call: ObjectCall, { info }: Source): Checksum | undefined {
  const asked = header(call, 'x-amz-checksum-algorithm');
  const algorithm = asked === undefined ? info.checksum?.algorithm : readAlgorithm(asked);
  return algorithm && new Checksum(algorithm);
}

/** CopyObject: the source is read and written like a put, so a copy is as atomic and durable. */
export const copyObject: Operation = async (call) => {
  const source = await openSource(call);
  const attributes = attributesOfCopy(call, source);
  const { sizeBytes } = source.info;
  if (sizeBytes > EDGE_LIMITS.objectPutBytesMax) throw new S3Error('EntityTooLarge');
  const bytes = source.read({ start: 0, end: sizeBytes - 1 });
  const info = await call.store.put(call.target.key, bytes, {
    ...{ attributes, checksum: checksumOfCopy(call, source) },
    precondition: writePrecondition(call.headers),
  });
  return {
    status: 200,
    xml: copyResult('CopyObjectResult', info, checksumElements(info.checksum)),
  };
};

function readSourceRange(call: ObjectCall, { sizeBytes }: ObjectInfo) {
  const text = header(call, 'x-amz-copy-source-range');
  if (text === undefined) return { start: 0, end: sizeBytes - 1 };
  const [, first = '', last = ''] = /^bytes=(\d{1,15})-(\d{1,15})$/u.exec(text) ?? [];
  const [start, end] = [Number(first), Number(last)];
  if (first === '' || start > end || end >= sizeBytes) {
    throw new S3Error('InvalidArgument', 'x-amz-copy-source-range does not fit the source.');
  }
  return { start, end };
}

/** UploadPartCopy. */
export const copyPart: Operation = async (call) => {
  const uploadId = requiredParameter(call, 'uploadId');
  const partNumber = readPartNumber(call);
  const source = await openSource(call);
  const range = readSourceRange(call, source.info);
  if (range.end - range.start >= EDGE_LIMITS.objectPutBytesMax) throw new S3Error('EntityTooLarge');
  const { uploads } = call.store;
  const part = await uploads.putPart(uploadId, call.target.key, partNumber, source.read(range));
  const info = { etag: part.etag, modifiedAt: new Date() };
  const checksums = [partChecksumElement(part.checksum)];
  return { status: 200, xml: copyResult('CopyPartResult', info, checksums) };
};
