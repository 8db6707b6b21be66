import { LIMITS } from '../../../shared/limits.ts';
import { readAttributes } from '../http/attributes.ts';
import { S3Error } from '../protocol/errors.ts';
import { respondWithFile } from '../http/file-response.ts';
import { type ObjectCall, type Operation, quoted } from '../http/operation.ts';
import { checkWritePreconditions } from '../http/write-preconditions.ts';
import { xmlBody } from '../http/request-body.ts';
import { parseDelete } from '../http/request-documents.ts';
import type { ObjectInfo } from '../store/object-info.ts';
import { element, renderAnswer } from '../protocol/xml.ts';

const DELETES_AT_ONCE = 8;
/** What can stand in a header (RFC 9110, section 5.5). */
const HEADER_VALUE = /^[\t\u0020-\u007e\u0080-\u00ff]*$/u;

/** Query parameters that replace headers of the answer, as presigned URLs use them. */
const OVERRIDES = [
  'content-type',
  'content-language',
  'expires',
  'cache-control',
  'content-disposition',
  'content-encoding',
];

function overrides({ target }: ObjectCall): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const name of OVERRIDES) {
    const value = target.query.get(`response-${name}`);
    if (value === undefined) continue;
    if (!HEADER_VALUE.test(value)) throw new S3Error('InvalidArgument');
    headers[name] = value;
  }
  return headers;
}

/** The status and headers for a GET or HEAD of the object that `info` describes. */
function respond(call: ObjectCall, info: ObjectInfo, method: 'GET' | 'HEAD') {
  const { sizeBytes, etag, modifiedAt, contentType } = info;
  const facts = { sizeBytes, etag: quoted(etag), modifiedAt, contentType };
  const { status, headers, body } = respondWithFile(facts, method, call.headers);
  if (status === 412) throw new S3Error('PreconditionFailed');
  if (status === 416) {
    throw new S3Error('InvalidRange', `The object has ${sizeBytes} bytes.`, { headers });
  }
  const kept = status === 304 ? {} : { ...info.headers, ...overrides(call) };
  return { status, headers: { ...headers, ...kept }, parts: body };
}

export const getObject: Operation = async (call) => {
  const { key } = call.target;
  if (key.endsWith('/')) {
    const { status, headers } = respond(call, await call.store.head(key), 'GET');
    return { status, headers };
  }
  const file = await call.store.open(key);
  try {
    const { status, headers, parts } = respond(call, file, 'GET');
    return { status, headers, object: { file, parts } };
  } catch (error) {
    await file.close();
    throw error;
  }
};

export const headObject: Operation = async (call) => {
  const { status, headers } = respond(call, await call.store.head(call.target.key), 'HEAD');
  return { status, headers };
};

export const putObject: Operation = async (call) => {
  const body = call.body.read({ bytesMax: LIMITS.objectPutBytesMax });
  const { etag } = await call.store.put(call.target.key, body, {
    attributes: readAttributes(call),
    precondition: (present) => checkWritePreconditions(call.headers, present),
  });
  return { status: 200, headers: { etag: quoted(etag) } };
};

/** AppendObject (docs/object-api.md): at most 1 MiB at a time, to a file that may not exist yet. */
export const appendObject: Operation = async (call) => {
  const body = await call.body.readAll({ bytesMax: LIMITS.objectAppendBytesMax });
  const { etag } = await call.store.append(call.target.key, body, readAttributes(call));
  return { status: 200, headers: { etag: quoted(etag) } };
};

export const deleteObject: Operation = async ({ store, target }) => {
  await store.delete(target.key);
  return { status: 204 };
};

/** DeleteObjects: keys are deleted independently; the answer lists failures and deletions. */
export const deleteObjects: Operation = async ({ store, body }) => {
  const { keys, quiet } = parseDelete(await body.readAll(xmlBody));
  const results = new Map<string, S3Error | undefined>();
  const left = [...new Set(keys)];
  const work = async (): Promise<void> => {
    for (let key = left.shift(); key !== undefined; key = left.shift()) {
      try {
        await store.delete(key);
        results.set(key, undefined);
      } catch (error) {
        if (!(error instanceof S3Error)) throw error;
        results.set(key, error);
      }
    }
  };
  await Promise.all(Array.from({ length: DELETES_AT_ONCE }, work));
  const elements = keys.map((key) => {
    const error = results.get(key);
    if (error === undefined) return quiet ? undefined : element('Deleted', [element('Key', key)]);
    const { code, message } = error;
    return element('Error', [
      element('Key', key),
      element('Code', code),
      element('Message', message),
    ]);
  });
  return { status: 200, xml: renderAnswer('DeleteResult', elements) };
};
