import { EDGE_LIMITS } from '../../limits.ts';
import { readAttributes } from '../http/attributes.ts';
import type { ByteRange } from '../protocol/byte-ranges.ts';
import { checksumHeaders } from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import { headerOverrides } from '../http/header-overrides.ts';
import { respondWithFile } from '../http/file-response.ts';
import { header, type ObjectCall, type Operation, quoted } from '../http/operation.ts';
import { type DeleteConditions, deletePrecondition } from '../http/delete-conditions.ts';
import { assertVersion } from '../http/version-id.ts';
import { withQuotedTags } from '../http/unquoted-tags.ts';
import { writePrecondition } from '../http/write-preconditions.ts';
import { xmlBody } from '../http/request-body.ts';
import { type DeletedObject, parseDelete } from '../http/request-documents.ts';
import type { ObjectInfo, OpenObject, Precondition, ReadObject } from '../store/object-info.ts';
import type { ObjectPart } from '../store/part-table.ts';
import { readPart } from './object-parts.ts';
import { element, renderAnswer } from '../protocol/xml.ts';

const DELETES_AT_ONCE = 8;

/** A proxy that compressed the content would take its length away and make its ETag weak. */
const UNCHANGED = { 'cache-control': 'no-transform' } as const;

const CACHING: ReadonlySet<string> = new Set(['cache-control', 'expires']);

/** The checksum of what an answer brings, if the request asks for it. */
function checksumOf(
  call: ObjectCall,
  status: number,
  { checksum }: ObjectInfo,
  part: ObjectPart | undefined,
): Record<string, string> {
  const mode = header(call, 'x-amz-checksum-mode');
  if (mode === undefined) return {};
  if (mode !== 'ENABLED') throw new S3Error('InvalidArgument', 'x-amz-checksum-mode: ENABLED');
  if (part === undefined) return status === 200 ? checksumHeaders(checksum) : {};
  return part.checksum === undefined || checksum === undefined
    ? {}
    : checksumHeaders({ ...part.checksum, type: checksum.type });
}

/** The kept headers that a 304 has, beside its validators (RFC 9110, section 15.4.5). */
const cachingOf = (kept: Readonly<Record<string, string>>): Record<string, string> =>
  Object.fromEntries(Object.entries(kept).filter(([name]) => CACHING.has(name)));

const rangeOf = ({ start, sizeBytes }: ObjectPart): ByteRange => ({
  start,
  end: start + sizeBytes - 1,
});

/** The status and headers for a GET or HEAD of an open object. */
async function respond(call: ObjectCall, info: ReadObject | OpenObject, method: 'GET' | 'HEAD') {
  const { sizeBytes, etag, modifiedAt } = info;
  // Several ranges have the content type in their parts.
  const { 'content-type': contentType = info.contentType, ...replaced } = headerOverrides(
    call.target,
  );
  const kept: Record<string, string> = { ...UNCHANGED, ...info.headers, ...replaced };
  const facts = { sizeBytes, etag: quoted(etag), modifiedAt, contentType };
  const part = 'fd' in info ? await readPart(call, info) : undefined;
  const options = { rangeOfHead: true, part: part && sizeBytes > 0 ? rangeOf(part) : undefined };
  const { status, headers, body } = respondWithFile(
    facts,
    method,
    withQuotedTags(call.headers),
    options,
  );
  if (status === 412) throw new S3Error('PreconditionFailed');
  if (status === 416) {
    throw new S3Error('InvalidRange', `The object has ${sizeBytes} bytes.`, { headers });
  }
  if (status === 304) return { status, headers: { ...headers, ...cachingOf(kept) }, parts: body };
  const count = part === undefined || info.partCount === 0 ? undefined : String(info.partCount);
  const own = {
    ...checksumOf(call, status, info, part),
    ...(count === undefined ? {} : { 'x-amz-mp-parts-count': count }),
  };
  return { status, headers: { ...headers, ...kept, ...own }, parts: body };
}

export const getObject: Operation = async (call) => {
  const { key, query } = call.target;
  assertVersion(query.get('versionId'));
  // Reading a small object with the call that opens it saves another turn on a disk thread. Where a
  // part of it lies is read from the open file.
  const file = query.has('partNumber')
    ? await call.store.open(key)
    : await call.store.readOrOpen(key, EDGE_LIMITS.objectReadAtOnceBytesMax);
  let isSent = false;
  try {
    const { status, headers, parts } = await respond(call, file, 'GET');
    if (file.isDirectory) return { status, headers };
    isSent = true;
    return { status, headers, object: { file, parts } };
  } finally {
    if (!isSent && 'close' in file) await file.close();
  }
};

export const headObject: Operation = async (call) => {
  const { key, query } = call.target;
  assertVersion(query.get('versionId'));
  const file = await call.store.open(key);
  try {
    const { status, headers } = await respond(call, file, 'HEAD');
    return { status, headers };
  } finally {
    await file.close();
  }
};

/** GetObjectTagging: no object has tags, since requests that give it some are refused. */
export const getObjectTagging: Operation = async ({ target, store }) => {
  assertVersion(target.query.get('versionId'));
  const file = await store.open(target.key);
  await file.close();
  return { status: 200, xml: renderAnswer('Tagging', [element('TagSet', [])]) };
};

export const putObject: Operation = async (call) => {
  const { bytes, ...checks } = call.body.stream({ bytesMax: EDGE_LIMITS.objectPutBytesMax });
  const { etag, checksum } = await call.store.put(call.target.key, bytes, {
    ...checks,
    attributes: readAttributes(call),
    precondition: writePrecondition(call.headers),
  });
  return { status: 200, headers: { etag: quoted(etag), ...checksumHeaders(checksum) } };
};

/** AppendObject (docs/object-api.md): at most 1 MiB at a time, to a file that may not exist yet. */
export const appendObject: Operation = async (call) => {
  const body = await call.body.readAll({ bytesMax: EDGE_LIMITS.objectAppendBytesMax });
  const { etag } = await call.store.append(call.target.key, body, readAttributes(call));
  return { status: 200, headers: { etag: quoted(etag) } };
};

export const deleteObject: Operation = async (call) => {
  const { store, target, deleted } = call;
  assertVersion(target.query.get('versionId'));
  const conditions = {
    etag: header(call, 'if-match'),
    lastModified: header(call, 'x-amz-if-match-last-modified-time'),
    sizeBytes: header(call, 'x-amz-if-match-size'),
  };
  await store.delete(target.key, preconditionOf(conditions));
  deleted.keys += 1;
  return { status: 204 };
};

/** Undefined without conditions, so that a plain delete does not read the object. */
const preconditionOf = (conditions: DeleteConditions): Precondition | undefined =>
  Object.values(conditions).some((value) => value !== undefined)
    ? deletePrecondition(conditions)
    : undefined;

/** DeleteObjects: keys are deleted independently; the answer lists failures and deletions. */
export const deleteObjects: Operation = async ({ store, body, deleted }) => {
  const { objects, quiet } = parseDelete(await body.readAll(xmlBody));
  const errors = new Map<DeletedObject, S3Error>();
  const left = objects.values();
  const work = async (): Promise<void> => {
    for (const object of left) {
      const { key, versionId, conditions } = object;
      try {
        assertVersion(versionId);
        await store.delete(key, preconditionOf(conditions));
        deleted.keys += 1;
      } catch (error) {
        deleted.failedKeys += 1;
        if (!(error instanceof S3Error)) throw error;
        errors.set(object, error);
      }
    }
  };
  await Promise.all(Array.from({ length: DELETES_AT_ONCE }, work));
  const elements = objects.map((object) => {
    const { key, versionId } = object;
    const error = errors.get(object);
    if (error === undefined && quiet) return undefined;
    return element(error === undefined ? 'Deleted' : 'Error', [
      element('Key', key),
      versionId === undefined ? undefined : element('VersionId', versionId),
      ...(error === undefined
        ? []
        : [element('Code', error.code), element('Message', error.message)]),
    ]);
  });
  return { status: 200, xml: renderAnswer('DeleteResult', elements) };
};
