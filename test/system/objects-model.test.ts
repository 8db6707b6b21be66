/*
 * The service model of S3, field by field: each header, query parameter and element of the
 * operations that are offered is sent with a value that matters. It must be obeyed, which the
 * answer or the object proves, or be refused without effect. Fields and operations that a later
 * model adds are tested without anybody having thought of them.
 */
import { createHash } from 'node:crypto';
import anyTest, { type TestFn } from 'ava';
import { createDisk } from '../helpers/disks.ts';
import { ObjectClient, type ObjectReply, s3UrlOf, textsOf } from '../helpers/objects.ts';
import { fieldsOf, operationNames, requestOf, type S3Field } from '../helpers/s3-model.ts';
import { Stack } from '../helpers/stack.ts';

interface Context {
  stack: Stack;
  s3: ObjectClient;
  disk: string;
  /** The ETag of `read`, an object that is only read. */
  etag: string;
}

const test = anyTest as TestFn<Context>;

/** A request that is complete without the field under test. */
interface Draft {
  readonly method: string;
  /** Empty for the bucket. */
  readonly key: string;
  readonly query: Record<string, string>;
  readonly headers: Record<string, string>;
  /** The content of the document's root element, or the body. */
  body: string | undefined;
  readonly root?: string;
}

interface Outcome {
  readonly reply: ObjectReply;
  readonly draft: Draft;
  readonly context: Context;
}

/** How a field is sent, and whether the outcome proves that it was obeyed. */
interface Rule {
  readonly value: string | ((draft: Draft, context: Context) => string);
  readonly isObeyed: (outcome: Outcome) => boolean | Promise<boolean>;
}

const CONTENT = 'content of the object';
const NO_ETAG = '"00000000000000000000000000000000"';
const PAST = 'Thu, 01 Jan 1970 00:00:00 GMT';
const FUTURE = 'Fri, 01 Jan 2100 00:00:00 GMT';
const md5Of = (text: string): string => createHash('md5').update(text).digest('hex');
const base64 = (bytes: number): string => Buffer.alloc(bytes, 1).toString('base64');

const answers =
  (...wanted: number[]) =>
  ({ reply }: Outcome): boolean =>
    wanted.includes(reply.status);
const says =
  (code: string) =>
  ({ reply }: Outcome): boolean =>
    reply.code === code || textsOf(reply.text, 'Code').includes(code);
const lists =
  (name: string, ...texts: string[]) =>
  ({ reply }: Outcome): boolean =>
    JSON.stringify(textsOf(reply.text, name)) === JSON.stringify(texts);

/** A put or a copy shows the header again when its object is read. */
const isKept =
  (name: string, value: string) =>
  async ({ reply, draft, context: { s3, disk } }: Outcome): Promise<boolean> => {
    const [uploadId] = textsOf(reply.text, 'UploadId');
    if (uploadId !== undefined) await finish(s3, disk, draft.key, uploadId);
    const found = await s3.call('HEAD', `/${disk}/${draft.key}`);
    return found.headers.get(name) === value;
  };

async function finish(s3: ObjectClient, disk: string, key: string, id: string): Promise<void> {
  const target = `/${disk}/${key}?uploadId=${id}`;
  await s3.call('PUT', `${target}&partNumber=1`, { body: CONTENT });
  const part = `<Part><PartNumber>1</PartNumber><ETag>${md5Of(CONTENT)}</ETag></Part>`;
  const body = `<CompleteMultipartUpload>${part}</CompleteMultipartUpload>`;
  await s3.call('POST', target, { body });
}

const CHECKSUM_BYTES = { crc32: 4, crc32c: 4, crc64nvme: 8, sha1: 20, sha256: 32 };
const wrongChecksums = Object.fromEntries(
  Object.entries(CHECKSUM_BYTES).flatMap(([name, bytes]): [string, Rule][] => [
    [`x-amz-checksum-${name}`, { value: base64(bytes), isObeyed: answers(400) }],
    [`Part/Checksum${name.toUpperCase()}`, { value: base64(bytes), isObeyed: says('InvalidPart') }],
  ]),
);
const kept = Object.fromEntries(
  [
    ...[
      ['cache-control', 'max-age=7'],
      ['content-disposition', 'attachment; filename="a"'],
    ],
    ...[
      ['content-encoding', 'gzip'],
      ['content-language', 'de'],
      ['expires', FUTURE],
    ],
    ...[
      ['content-type', 'text/x-model'],
      ['x-amz-meta-model', 'red'],
    ],
  ].map(([name = '', value = '']): [string, Rule] => [
    name,
    { value, isObeyed: isKept(name, value) },
  ]),
);
const overrides = Object.fromEntries(
  [
    ...['cache-control', 'content-disposition', 'content-encoding', 'content-language'],
    ...['content-type', 'expires'],
  ].map((name): [string, Rule] => [
    `response-${name}`,
    { value: 'x-model', isObeyed: ({ reply }) => reply.headers.get(name) === 'x-model' },
  ]),
);

/** By the name of the field, for all operations … */
const RULES: Readonly<Record<string, Rule>> = {
  ...wrongChecksums,
  ...overrides,
  'x-amz-expected-bucket-owner': { value: '000000000000', isObeyed: answers(403) },
  'x-amz-source-expected-bucket-owner': { value: '000000000000', isObeyed: answers(403) },
  'x-amz-request-payer': { value: 'requester', isObeyed: answers(200, 204, 409) }, // Nobody pays.
  // Its value is missing.
  'x-amz-sdk-checksum-algorithm': { value: 'CRC32', isObeyed: answers(400) },
  'content-length': { value: String(CONTENT.length), isObeyed: answers(200) },
  'content-md5': { value: base64(16), isObeyed: says('BadDigest') },
  'if-match': { value: NO_ETAG, isObeyed: answers(412, 404) },
  'if-modified-since': { value: FUTURE, isObeyed: answers(304) },
  'if-unmodified-since': { value: PAST, isObeyed: answers(412) },
  'x-amz-copy-source-if-match': { value: NO_ETAG, isObeyed: answers(412) },
  'x-amz-copy-source-if-none-match': { value: (_, { etag }) => etag, isObeyed: answers(412) },
  'x-amz-copy-source-if-modified-since': { value: FUTURE, isObeyed: answers(412) },
  'x-amz-copy-source-if-unmodified-since': { value: PAST, isObeyed: answers(412) },
  'x-amz-copy-source': { value: (_, { disk }) => `${disk}/missing`, isObeyed: says('NoSuchKey') },
  'x-amz-if-match-last-modified-time': { value: PAST, isObeyed: answers(412) },
  'x-amz-if-match-size': { value: '1', isObeyed: answers(412) },
  versionId: { value: 'another', isObeyed: answers(404) },
  uploadId: { value: 'another', isObeyed: answers(404) },
  'encoding-type': {
    value: 'url',
    isObeyed: ({ reply }) => textsOf(reply.text, 'EncodingType')[0] === 'url',
  },
};

const READ: Readonly<Record<string, Rule>> = {
  'if-none-match': { value: (_, { etag }) => etag, isObeyed: answers(304) },
  range: {
    value: 'bytes=1-2',
    isObeyed: ({ reply }) => reply.headers.get('content-length') === '2',
  },
  partNumber: { value: '2', isObeyed: answers(416) },
  'x-amz-checksum-mode': {
    value: 'ENABLED',
    isObeyed: ({ reply }) => reply.headers.has('x-amz-checksum-sha256'),
  },
};
const LISTING: Readonly<Record<string, Rule>> = {
  prefix: { value: 'listed/b', isObeyed: lists('Key', 'listed/b/c', 'listed/b/d') },
  delimiter: {
    value: '/',
    isObeyed: ({ reply }) => reply.text.includes('<Prefix>listed/</Prefix>'),
  },
  'max-keys': { value: '1', isObeyed: ({ reply }) => textsOf(reply.text, 'Key').length === 1 },
  marker: {
    value: 'listed/b/c',
    isObeyed: ({ reply }) => !reply.text.includes('listed/b/c</Key>'),
  },
};
const UNCHANGED: Readonly<Record<string, Rule>> = {
  'x-amz-acl': { value: 'private', isObeyed: answers(200) },
  'x-amz-storage-class': { value: 'STANDARD', isObeyed: answers(200) },
};

/** … and for one operation, where the same name is proved in another way. */
const RULES_OF: Readonly<Record<string, Readonly<Record<string, Rule>>>> = {
  GetObject: READ,
  HeadObject: READ,
  ListObjects: LISTING,
  ListObjectsV2: {
    ...LISTING,
    'start-after': {
      value: 'listed/b/c',
      isObeyed: ({ reply }) => !reply.text.includes('listed/b/c</Key>'),
    },
    'continuation-token': { value: '?', isObeyed: answers(400) },
    'fetch-owner': { value: 'true', isObeyed: ({ reply }) => reply.text.includes('<Owner>') },
  },
  ListBuckets: {
    'max-buckets': {
      value: '1',
      isObeyed: ({ reply }) => textsOf(reply.text, 'Name').length === 1,
    },
    prefix: { value: 'no-such', isObeyed: lists('Name') },
    'continuation-token': { value: '?', isObeyed: answers(400) },
    'bucket-region': { value: 'no-such', isObeyed: lists('Name') },
  },
  ListMultipartUploads: {
    prefix: { value: 'no-such', isObeyed: lists('Key') },
    delimiter: { value: 'd', isObeyed: ({ reply }) => textsOf(reply.text, 'Delimiter')[0] === 'd' },
    'key-marker': { value: '\u{10ffff}', isObeyed: lists('Key') },
    'max-uploads': { value: '0', isObeyed: lists('Key') },
    'upload-id-marker': {
      value: 'x',
      isObeyed: ({ reply }) => textsOf(reply.text, 'UploadIdMarker')[0] === 'x',
    },
  },
  ListParts: {
    'max-parts': { value: '0', isObeyed: lists('PartNumber') },
    'part-number-marker': { value: '1', isObeyed: lists('PartNumber') },
  },
  GetObjectAttributes: {
    'x-amz-object-attributes': { value: 'ObjectSize', isObeyed: lists('ETag') },
    'x-amz-max-parts': { value: 'no number', isObeyed: answers(400) },
    'x-amz-part-number-marker': { value: 'no number', isObeyed: answers(400) },
  },
  PutObject: { ...kept, ...UNCHANGED, 'if-none-match': { value: '*', isObeyed: answers(200) } },
  CreateMultipartUpload: {
    ...kept,
    ...UNCHANGED,
    'x-amz-checksum-algorithm': {
      value: 'SHA1',
      isObeyed: ({ reply }) => reply.headers.get('x-amz-checksum-algorithm') === 'SHA1',
    },
    'x-amz-checksum-type': { value: 'COMPOSITE', isObeyed: answers(400) }, // Without an algorithm.
  },
  CopyObject: {
    ...kept,
    ...UNCHANGED,
    'if-none-match': { value: '*', isObeyed: answers(200) },
    'x-amz-checksum-algorithm': {
      value: 'SHA1',
      isObeyed: ({ reply }) => textsOf(reply.text, 'ChecksumSHA1').length === 1,
    },
    'x-amz-metadata-directive': { value: 'OTHER', isObeyed: answers(400) },
    'x-amz-tagging-directive': { value: 'COPY', isObeyed: answers(200) },
  },
  UploadPart: { partNumber: { value: '0', isObeyed: answers(400) } },
  UploadPartCopy: {
    partNumber: { value: '0', isObeyed: answers(400) },
    'x-amz-copy-source-range': {
      value: 'bytes=0-0',
      isObeyed: ({ reply }) => reply.text.includes(md5Of(CONTENT.slice(0, 1))),
    },
  },
  CompleteMultipartUpload: {
    'if-none-match': { value: '*', isObeyed: answers(200) },
    'x-amz-checksum-type': { value: 'OTHER', isObeyed: answers(400) },
    'x-amz-mp-object-size': { value: '1', isObeyed: answers(400) },
    'Part/ETag': { value: NO_ETAG, isObeyed: says('InvalidPart') },
    'Part/PartNumber': { value: '2', isObeyed: says('InvalidPart') },
  },
  DeleteObjects: {
    'Object/Key': { value: '..', isObeyed: ({ reply }) => reply.text.includes('<Key>..</Key>') },
    'Object/VersionId': { value: 'another', isObeyed: says('NoSuchVersion') },
    'Object/ETag': { value: NO_ETAG, isObeyed: says('PreconditionFailed') },
    'Object/LastModifiedTime': { value: PAST, isObeyed: says('PreconditionFailed') },
    'Object/Size': { value: '1', isObeyed: says('PreconditionFailed') },
    Quiet: { value: 'true', isObeyed: lists('Deleted') },
  },
};

/** Values of fields without a rule; any other field gets `1`. */
const VALUES: Readonly<Record<string, string>> = {
  'x-amz-acl': 'public-read',
  'x-amz-storage-class': 'GLACIER',
  'x-amz-server-side-encryption': 'AES256',
  'x-amz-tagging': 'a=b',
  'x-amz-optional-object-attributes': 'RestoreStatus',
};

test.before(async (t) => {
  const stack = await Stack.start();
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  const s3 = new ObjectClient(s3UrlOf(stack), api.key);
  const sha256 = createHash('sha256').update(CONTENT).digest('base64');
  const { headers } = await s3.put(id, 'read', CONTENT, { 'x-amz-checksum-sha256': sha256 });
  for (const key of ['a', 'b/c', 'b/d']) await s3.put(id, `listed/${key}`, 'x');
  const etag = headers.get('etag') ?? '';
  Object.assign(t.context, { stack, s3, disk: id, etag });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

let keys = 0;
const newKey = (): string => `written/${(keys += 1)}`;

async function newUpload({ s3, disk }: Context, key: string): Promise<string> {
  const { text } = await s3.call('POST', `/${disk}/${key}?uploads`);
  const [uploadId = ''] = textsOf(text, 'UploadId');
  return uploadId;
}

/** Complete requests of the operations that are offered. */
const DRAFTS: Readonly<Record<string, (context: Context) => Draft | Promise<Draft>>> = {
  ListBuckets: () => bare('GET', ''),
  ListMultipartUploads: async (context) => {
    await newUpload(context, newKey());
    return bare('GET', '', { uploads: '' });
  },
  GetBucketLocation: () => bare('GET', '', { location: '' }),
  GetBucketVersioning: () => bare('GET', '', { versioning: '' }),
  ListObjectsV2: () => bare('GET', '', { 'list-type': '2' }),
  ListObjects: () => bare('GET', ''),
  HeadBucket: () => bare('HEAD', ''),
  CreateBucket: () => ({ ...bare('PUT', ''), root: 'CreateBucketConfiguration' }),
  DeleteObjects: async ({ s3, disk }) => {
    const key = newKey();
    await s3.put(disk, key, CONTENT);
    const body = `<Object><Key>${key}</Key></Object>`;
    return { ...bare('POST', '', { delete: '' }), body, root: 'Delete' };
  },
  ListParts: async (context) => {
    const key = newKey();
    const uploadId = await newUpload(context, key);
    await putPart(context, key, uploadId);
    return bare('GET', key, { uploadId });
  },
  GetObjectAttributes: async (context) => {
    const key = newKey();
    await finish(context.s3, context.disk, key, await newUpload(context, key));
    const headers = { 'x-amz-object-attributes': 'ETag,ObjectParts' };
    return { ...bare('GET', key, { attributes: '' }), headers };
  },
  GetObjectTagging: () => bare('GET', 'read', { tagging: '' }),
  GetObject: () => bare('GET', 'read'),
  HeadObject: () => bare('HEAD', 'read'),
  UploadPartCopy: async (context) => {
    const key = newKey();
    const query = { uploadId: await newUpload(context, key), partNumber: '1' };
    return { ...bare('PUT', key, query), headers: { 'x-amz-copy-source': `${context.disk}/read` } };
  },
  UploadPart: async (context) => {
    const key = newKey();
    const query = { uploadId: await newUpload(context, key), partNumber: '1' };
    return { ...bare('PUT', key, query), body: CONTENT };
  },
  CopyObject: ({ disk }) => ({
    ...bare('PUT', newKey()),
    headers: { 'x-amz-copy-source': `${disk}/read`, 'x-amz-metadata-directive': 'REPLACE' },
  }),
  PutObject: () => ({ ...bare('PUT', newKey()), body: CONTENT }),
  CreateMultipartUpload: () => bare('POST', newKey(), { uploads: '' }),
  CompleteMultipartUpload: async (context) => {
    const key = newKey();
    const uploadId = await newUpload(context, key);
    await putPart(context, key, uploadId);
    const body = `<Part><PartNumber>1</PartNumber><ETag>${md5Of(CONTENT)}</ETag></Part>`;
    return { ...bare('POST', key, { uploadId }), body, root: 'CompleteMultipartUpload' };
  },
  AbortMultipartUpload: async (context) => {
    const key = newKey();
    return bare('DELETE', key, { uploadId: await newUpload(context, key) });
  },
  DeleteObject: async ({ s3, disk }) => {
    const key = newKey();
    await s3.put(disk, key, CONTENT);
    return bare('DELETE', key);
  },
};

const bare = (method: string, key: string, query: Record<string, string> = {}): Draft => ({
  ...{ method, key, query: { ...query }, headers: {}, body: undefined },
});

const putPart = ({ s3, disk }: Context, key: string, uploadId: string) =>
  s3.call('PUT', `/${disk}/${key}?uploadId=${uploadId}&partNumber=1`, { body: CONTENT });

/** The document with the element set, in its first item if it belongs into one. */
function withElement(document: string, path: string, value: string): string {
  const [item, name] = path.includes('/') ? path.split('/') : [undefined, path];
  const markup = `<${name}>${value}</${name}>`;
  const present = new RegExp(`<${name}>[^<]*</${name}>`, 'u');
  if (present.test(document)) return document.replace(present, markup);
  if (item === undefined) return document + markup;
  const end = `</${item}>`;
  return document.includes(end)
    ? document.replace(end, markup + end)
    : `${document}<${item}>${markup}${end}`;
}

async function send(
  { s3, disk }: Context,
  operation: string,
  draft: Draft,
  field: S3Field,
  value: string,
): Promise<ObjectReply> {
  if (field.kind === 'header') draft.headers[field.name] = value;
  if (field.kind === 'query') draft.query[field.name] = value;
  if (field.kind === 'element') draft.body = withElement(draft.body ?? '', field.name, value);
  const { method, key, query, headers, body, root } = draft;
  const path = operation === 'ListBuckets' ? '/' : `/${disk}${key === '' ? '' : `/${key}`}`;
  const document = root === undefined ? body : `<${root}>${body ?? ''}</${root}>`;
  const target = `${path}?${new URLSearchParams(query).toString()}`;
  return s3.call(method, target, {
    headers,
    ...(document === undefined ? {} : { body: document }),
  });
}

/** A refused request has changed nothing: nothing was written, and nothing deleted. */
async function isUntouched({ s3, disk }: Context, draft: Draft): Promise<boolean> {
  const { method, key, query, body } = draft;
  const [named = key] = method === 'POST' && key === '' ? textsOf(body ?? '', 'Key') : [];
  const { status } = await s3.call('HEAD', `/${disk}/${named === '' ? 'read' : named}`);
  // The key of an upload has no object yet, and neither has that of a write that was refused.
  const isNew = 'uploadId' in query || (key !== '' && (method === 'PUT' || method === 'POST'));
  return status === (isNew ? 404 : 200);
}

for (const operation of Object.keys(DRAFTS)) {
  test(`${operation}: every field is obeyed or refused`, async (t) => {
    t.true(DRAFTS[operation] !== undefined); // Some operations have no fields.
    for (const field of fieldsOf(operation)) {
      const title = `${operation} with the ${field.kind} ${field.name}`;
      const draft = await DRAFTS[operation]!(t.context);
      const rule = RULES_OF[operation]?.[field.name] ?? RULES[field.name];
      const { value = VALUES[field.name] ?? '1' } = rule ?? {};
      const text = typeof value === 'string' ? value : value(draft, t.context);
      const reply = await send(t.context, operation, draft, field, text);
      const outcome = { reply, draft, context: t.context };
      if (rule !== undefined) {
        t.true(
          await rule.isObeyed(outcome),
          `${title} is not obeyed: ${reply.status} ${reply.text}`,
        );
        continue;
      }
      const isRefused = [400, 501].includes(reply.status) || operation === 'CreateBucket';
      t.true(isRefused, `${title} is ignored: ${reply.status} ${reply.text}`);
      t.true(await isUntouched(t.context, draft), `${title} is refused, and yet did something`);
    }
  });
}

test('every other operation of the model is refused and changes nothing', async (t) => {
  const { s3, disk } = t.context;
  // Its request is that of ListBuckets to the host name of another kind of bucket.
  const offered = new Set([...Object.keys(DRAFTS), 'ListDirectoryBuckets']);
  const others = operationNames.filter((name) => !offered.has(name));
  t.true(others.length > 50);
  const key = newKey();
  await s3.put(disk, key, CONTENT);
  for (const operation of others) {
    const { method, target } = requestOf(operation);
    const path = `/${disk}${target.replace('{Key+}', key)}`;
    const { status } = await s3.call(method, path, {
      ...(method === 'PUT' || method === 'POST' ? { body: '<Configuration/>' } : {}),
    });
    t.true([400, 405, 501].includes(status), `${operation} (${method} ${target}): ${status}`);
    t.is((await s3.get(disk, key)).text, CONTENT, operation);
  }
});

test('each rule is of a field that the model has', (t) => {
  const all = new Set(Object.keys(DRAFTS).flatMap((name) => fieldsOf(name).map((f) => f.name)));
  const named = [RULES, ...Object.values(RULES_OF), VALUES].flatMap((rules) => Object.keys(rules));
  t.deepEqual(
    named.filter((name) => !all.has(name)),
    [],
  );
});
