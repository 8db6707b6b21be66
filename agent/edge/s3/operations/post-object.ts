import { EDGE_LIMITS } from '../../limits.ts';
import { BodyChecks } from '../auth/checksums.ts';
import { checkPolicy, type PostForm } from '../auth/post-policy.ts';
import { readAttributes } from '../http/attributes.ts';
import { type ObjectCall, type Operation, quoted, type S3Reply } from '../http/operation.ts';
import { S3Error } from '../protocol/errors.ts';
import { isObjectHeader, toHeaderValue } from '../protocol/raw-headers.ts';
import { urlEncodeKey } from '../protocol/uri-escapes.ts';
import { element, renderAnswer } from '../protocol/xml.ts';
import { type AcceptedFields, assertAccepted } from './accepted-fields.ts';

/** Fields of a form that are no headers of a put. */
const FORM_FIELDS: ReadonlySet<string> = new Set([
  ...['key', 'policy', 'success_action_redirect', 'redirect', 'success_action_status', 'bucket'],
  ...['x-amz-algorithm', 'x-amz-credential', 'x-amz-date', 'x-amz-signature', 'submit'],
]);

const isHeaderField = (name: string): boolean =>
  /^[a-z0-9-]+$/u.test(name) &&
  (isObjectHeader(name) || /^(?:content-|cache-control$|expires$)/u.test(name));

/** The headers that the fields stand for. @throws S3Error NotImplemented for any other field */
function headersOf({ fields }: PostForm, accepts: AcceptedFields): Record<string, string> {
  const values: Record<string, string> = {};
  for (const [name, value] of fields) {
    if (FORM_FIELDS.has(name) || name.startsWith('x-ignore-')) continue;
    const header = name === 'acl' ? 'x-amz-acl' : name;
    if (!isHeaderField(header)) {
      throw new S3Error('NotImplemented', `PostObject is not implemented with the field ${name}.`);
    }
    if (/[\r\n\0]/u.test(value)) {
      throw new S3Error('InvalidArgument', `The field ${name} cannot be a header.`);
    }
    values[header] = toHeaderValue(value);
  }
  const raw = Object.entries(values).flat();
  assertAccepted({ name: 'PostObject', accepts }, { values, raw }, { query: new Map() });
  return values;
}

function keyOf({ fields, fileName }: PostForm): string {
  const key = (fields.get('key') ?? '').replaceAll('${filename}', () => fileName);
  if (key === '') throw new S3Error('InvalidArgument', 'The form must have a field key.');
  return key;
}

/** Passes the bytes of the file on, and counts them. @throws S3Error EntityTooLarge */
async function* counted(
  bytes: AsyncIterable<Buffer>,
  length: { bytes: number },
  bytesMax: number,
): AsyncGenerator<Buffer> {
  for await (const chunk of bytes) {
    length.bytes += chunk.length;
    if (length.bytes > bytesMax) {
      throw new S3Error('EntityTooLarge', `The file may have at most ${bytesMax} bytes.`);
    }
    yield chunk;
  }
}

function replyOf({ target }: ObjectCall, { fields }: PostForm, key: string, etag: string): S3Reply {
  const location = `/${target.bucket}/${urlEncodeKey(key)}`;
  const headers = { etag: quoted(etag), location };
  const redirect = fields.get('success_action_redirect') ?? fields.get('redirect');
  if (redirect !== undefined && URL.canParse(redirect)) {
    const url = new URL(redirect);
    for (const [name, value] of Object.entries({
      bucket: target.bucket,
      key,
      etag: quoted(etag),
    })) {
      url.searchParams.set(name, value);
    }
    return { status: 303, headers: { ...headers, location: url.href } };
  }
  const status = fields.get('success_action_status');
  if (status === '200') return { status: 200, headers };
  if (status !== '201') return { status: 204, headers };
  const xml = renderAnswer('PostResponse', [
    element('Location', location),
    element('Bucket', target.bucket),
    element('Key', key),
    element('ETag', quoted(etag)),
  ]);
  return { status: 201, headers, xml };
}

/** PostObject, whose fields are those of a form; the policy that it carries was signed. */
export const postObject =
  (accepts: AcceptedFields): Operation =>
  async (call) => {
    const { form, policy } = call;
    if (form === undefined) {
      throw new S3Error(
        'PreconditionFailed',
        'The body must be a form of type multipart/form-data.',
      );
    }
    const key = keyOf(form);
    const headers = headersOf(form, accepts);
    if (policy !== undefined) {
      checkPolicy(policy, new Map([...form.fields, ['bucket', call.target.bucket], ['key', key]]));
    }
    const [bytesMin, bytesMax] = policy?.lengthRange ?? [0, EDGE_LIMITS.objectPutBytesMax];
    const checks = BodyChecks.read(Object.entries(headers).flat(), { kind: 'unsigned' });
    const length = { bytes: 0 };
    const file = call.body.readFile();
    const { etag } = await call.store.put(key, counted(file, length, bytesMax), {
      attributes: readAttributes({ headers }),
      ...(checks.checksum === undefined ? {} : { checksum: checks.checksum }),
      verify: (digests) => {
        if (length.bytes < bytesMin) throw new S3Error('EntityTooSmall');
        checks.verify(digests);
      },
    });
    return replyOf(call, form, key, etag);
  };
