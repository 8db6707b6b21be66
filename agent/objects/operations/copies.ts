import { LIMITS } from '../../../shared/limits.ts';
import { readAttributes } from '../http/attributes.ts';
import { S3Error } from '../protocol/errors.ts';
import { readObject } from '../http/read-object.ts';
import { header, type ObjectCall, type Operation, quoted } from '../http/operation.ts';
import type { ObjectInfo, OpenObject, WriteAttributes } from '../store/object-info.ts';
import { readTarget } from '../http/target.ts';
import { element, renderAnswer } from '../protocol/xml.ts';
import { checkCopySource, checkWritePreconditions } from '../http/write-preconditions.ts';
import { readPartNumber, requiredParameter } from './multipart.ts';

interface Source {
  readonly bucket: string;
  readonly key: string;
  readonly file: OpenObject;
}

async function openSource(call: ObjectCall): Promise<Source> {
  const text = header(call, 'x-amz-copy-source') ?? '';
  const { bucket, key, query } = readTarget(text.startsWith('/') ? text : `/${text}`);
  if (key === '') throw new S3Error('InvalidArgument', 'x-amz-copy-source must name an object.');
  if (query.has('versionId') && query.get('versionId') !== 'null') {
    throw new S3Error('NotImplemented', 'Objects have no versions.');
  }
  const store = bucket === call.target.bucket ? call.store : await call.openStore(bucket);
  const file = await store.open(key);
  try {
    checkCopySource(call.headers, file);
  } catch (error) {
    await file.close();
    throw error;
  }
  return { bucket, key, file };
}

function attributesOfCopy(call: ObjectCall, { bucket, key, file }: Source): WriteAttributes {
  const given = readAttributes(call);
  const directive = header(call, 'x-amz-metadata-directive') ?? 'COPY';
  if (directive === 'REPLACE') return given;
  if (directive !== 'COPY')
    throw new S3Error('InvalidArgument', 'x-amz-metadata-directive must be COPY or REPLACE.');
  if (bucket === call.target.bucket && key === call.target.key) {
    throw new S3Error('InvalidRequest', 'A copy onto itself must replace the metadata.');
  }
  const { contentType, mode, uid, gid, headers } = file;
  return { mode, uid, gid, ...given, contentType, headers };
}

const copyResult = (name: string, { etag, modifiedAt }: Pick<ObjectInfo, 'etag' | 'modifiedAt'>) =>
  renderAnswer(name, [
    element('LastModified', modifiedAt.toISOString()),
    element('ETag', quoted(etag)),
  ]);

/** CopyObject: the source is read and written like a put, so a copy is as atomic and durable. */
export const copyObject: Operation = async (call) => {
  const source = await openSource(call);
  try {
    const attributes = attributesOfCopy(call, source);
    const { sizeBytes } = source.file;
    if (sizeBytes > LIMITS.objectPutBytesMax) throw new S3Error('EntityTooLarge');
    const bytes = readObject(source.file, { start: 0, end: sizeBytes - 1 });
    const info = await call.store.put(call.target.key, bytes, {
      attributes,
      precondition: (present) => checkWritePreconditions(call.headers, present),
    });
    return { status: 200, xml: copyResult('CopyObjectResult', info) };
  } finally {
    await source.file.close();
  }
};

function readSourceRange(call: ObjectCall, { sizeBytes }: OpenObject) {
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
  const { file } = await openSource(call);
  try {
    const range = readSourceRange(call, file);
    if (range.end - range.start >= LIMITS.objectPutBytesMax) throw new S3Error('EntityTooLarge');
    const bytes = readObject(file, range);
    const { etag } = await call.store.uploads.putPart(uploadId, call.target.key, partNumber, bytes);
    return { status: 200, xml: copyResult('CopyPartResult', { etag, modifiedAt: new Date() }) };
  } finally {
    await file.close();
  }
};
