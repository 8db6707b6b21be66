/* Requests of S3 that answer success only when all of what they say was obeyed. */
import { createHash, type BinaryLike } from 'node:crypto';
import { crc32 } from 'node:zlib';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { ObjectClient, s3UrlOf, textsOf } from '../helpers/objects.ts';
import { sendRaw } from '../helpers/raw-http.ts';
import { Stack } from '../helpers/stack.ts';
import { MiB } from '../../shared/units.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  /** Clients of the agent's address and of control's. */
  s3: ObjectClient;
  rest: ObjectClient;
  disk: string;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start();
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  Object.assign(t.context, {
    ...{ stack, api, disk: id },
    s3: new ObjectClient(s3UrlOf(stack), api.key),
    rest: new ObjectClient(stack.baseUrl, api.key),
  });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const sha256 = (bytes: BinaryLike): Buffer => createHash('sha256').update(bytes).digest();

function crcOf(bytes: Buffer): string {
  const value = Buffer.alloc(4);
  value.writeUInt32BE(crc32(bytes));
  return value.toString('base64');
}

const [FIRST, SECOND] = [Buffer.alloc(5 * MiB, 'first '), Buffer.alloc(1000, 'second ')];
const WHOLE = Buffer.concat([FIRST, SECOND]);

interface Uploading {
  readonly target: string;
  readonly uploadId: string;
  readonly etags: readonly string[];
}

/** Uploads the two parts. */
async function upload(
  { s3, disk }: Context,
  key: string,
  created: Record<string, string> = {},
  ofPart: (body: Buffer) => Record<string, string> = () => ({}),
): Promise<Uploading> {
  const target = `/${disk}/${key}`;
  const { text } = await s3.call('POST', `${target}?uploads=`, { headers: created });
  const [uploadId = ''] = textsOf(text, 'UploadId');
  const etags: string[] = [];
  for (const [index, body] of [FIRST, SECOND].entries()) {
    const query = `?uploadId=${uploadId}&partNumber=${index + 1}`;
    const { headers } = await s3.call('PUT', `${target}${query}`, { body, headers: ofPart(body) });
    etags.push(headers.get('etag') ?? '');
  }
  return { target, uploadId, etags };
}

const complete = (
  { s3 }: Context,
  { target, uploadId, etags }: Uploading,
  headers: Record<string, string> = {},
  elements: readonly string[] = [],
) => {
  const parts = etags.map(
    (etag, index) =>
      `<Part><PartNumber>${index + 1}</PartNumber><ETag>${etag}</ETag>${elements[index] ?? ''}</Part>`,
  );
  const body = `<CompleteMultipartUpload>${parts.join('')}</CompleteMultipartUpload>`;
  return s3.call('POST', `${target}?uploadId=${uploadId}`, { body, headers });
};

const ENABLED = { 'x-amz-checksum-mode': 'ENABLED' };

test('a part of an object is read by its number, and HEAD tells its length', async (t) => {
  const { s3 } = t.context;
  const uploading = await upload(t.context, 'parts');
  t.is((await complete(t.context, uploading)).status, 200);
  const { target } = uploading;
  const second = await s3.call('GET', `${target}?partNumber=2`);
  t.is(second.status, 206);
  t.true(second.body.equals(SECOND));
  t.is(second.headers.get('x-amz-mp-parts-count'), '2');
  t.is(
    second.headers.get('content-range'),
    `bytes ${FIRST.length}-${WHOLE.length - 1}/${WHOLE.length}`,
  );
  const first = await s3.call('HEAD', `${target}?partNumber=1`);
  t.deepEqual([first.status, first.headers.get('content-length')], [206, String(FIRST.length)]);
  const beyond = await s3.call('GET', `${target}?partNumber=3`);
  t.deepEqual([beyond.status, beyond.code], [416, 'InvalidPartNumber']);
  const both = await s3.call('GET', `${target}?partNumber=1`, { headers: { range: 'bytes=0-1' } });
  t.is(both.status, 400);
});

test('an object that was put at once has one part, the whole', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'one-part', 'whole');
  const found = await s3.call('GET', `/${disk}/one-part?partNumber=1`);
  t.deepEqual([found.status, found.text], [206, 'whole']);
  t.is((await s3.call('GET', `/${disk}/one-part?partNumber=2`)).code, 'InvalidPartNumber');
});

test('an object that is there has no tags', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'untagged', 'x');
  const { status, text } = await s3.call('GET', `/${disk}/untagged?tagging`);
  t.is(status, 200);
  t.regex(text, /<Tagging [^>]+><TagSet><\/TagSet><\/Tagging>/u);
  const absent = await s3.call('GET', `/${disk}/nothing?tagging`);
  t.deepEqual([absent.status, textsOf(absent.text, 'Code')], [404, ['NoSuchKey']]);
});

test('an ETag counts in the conditions of a read without its quotes, too', async (t) => {
  const { s3, disk } = t.context;
  const { headers } = await s3.put(disk, 'unquoted', 'abc');
  const tag = JSON.parse(headers.get('etag') ?? '') as string;
  const read = async (conditions: Record<string, string>) =>
    (await s3.get(disk, 'unquoted', conditions)).status;
  t.is(await read({ 'if-match': tag }), 200);
  t.is(await read({ 'if-none-match': tag }), 304);
  t.is(await read({ range: 'bytes=0-0', 'if-range': tag }), 206);
  t.is(await read({ 'if-match': tag.replaceAll(/[0-8]/gu, '9') }), 412);
});

test('a HEAD with a range is answered like its GET', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'ranged', '0123456789');
  const { status, headers } = await s3.call('HEAD', `/${disk}/ranged`, {
    headers: { range: 'bytes=2-4' },
  });
  t.deepEqual([status, headers.get('content-length')], [206, '3']);
  t.is(headers.get('content-range'), 'bytes 2-4/10');
});

test('the content type of several ranges is replaced in their parts', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'retyped', '0123456789');
  const read = (range: string) =>
    s3.call('GET', `/${disk}/retyped?response-content-type=a/b`, { headers: { range } });
  t.is((await read('bytes=0-1')).headers.get('content-type'), 'a/b');
  const { status, headers, text } = await read('bytes=0-1,8-9');
  t.is(status, 206);
  const [, boundary = ''] =
    /^multipart\/byteranges; boundary=([\w-]+)$/u.exec(headers.get('content-type') ?? '') ?? [];
  const part = (range: string, bytes: string) =>
    `--${boundary}\r\nContent-Type: a/b\r\nContent-Range: bytes ${range}/10\r\n\r\n${bytes}\r\n`;
  t.is(text, `${part('0-1', '01')}${part('8-9', '89')}--${boundary}--\r\n`);
});

test('an answer that nothing has changed says how long the object may be kept', async (t) => {
  const { s3, disk } = t.context;
  const expires = 'Sun, 06 Nov 2094 08:49:37 GMT';
  const { headers: plain } = await s3.put(disk, 'kept-plain', 'x');
  const stored = { expires, 'cache-control': 'max-age=60', 'x-amz-meta-a': 'b' };
  const { headers: aged } = await s3.put(disk, 'kept-aged', 'x', stored);
  const revalidate = async (target: string, put: Headers) => {
    const headers = { 'if-none-match': put.get('etag') ?? '' };
    const reply = await s3.call('GET', `/${disk}/${target}`, { headers });
    t.is(reply.status, 304);
    return ['cache-control', 'expires', 'x-amz-meta-a'].map((name) => reply.headers.get(name));
  };
  t.deepEqual(await revalidate('kept-plain', plain), ['no-transform', null, null]);
  t.deepEqual(await revalidate('kept-aged', aged), ['max-age=60', expires, null]);
  const replaced = 'kept-aged?response-cache-control=no-store';
  t.deepEqual(await revalidate(replaced, aged), ['no-store', expires, null]);
});

test('a conditional delete keeps an object that is not the expected one', async (t) => {
  const { s3, disk } = t.context;
  const { headers } = await s3.put(disk, 'kept', 'content');
  const etag = headers.get('etag') ?? '';
  const target = `/${disk}/kept`;
  for (const wrong of [
    { 'if-match': '"00000000000000000000000000000000"' },
    { 'x-amz-if-match-size': '8' },
    { 'x-amz-if-match-last-modified-time': 'Thu, 01 Jan 1970 00:00:00 GMT' },
  ]) {
    const refused = await s3.call('DELETE', target, { headers: wrong });
    t.deepEqual([refused.status, refused.code], [412, 'PreconditionFailed'], JSON.stringify(wrong));
  }
  t.is((await s3.call('HEAD', target)).status, 200);
  t.is((await s3.call('DELETE', target, { headers: { 'if-match': etag } })).status, 204);
  t.is((await s3.call('HEAD', target)).status, 404);
  t.is((await s3.call('DELETE', target, { headers: { 'if-match': etag } })).status, 204);
});

test('the elements of a deletion are conditions on its object', async (t) => {
  const { s3, disk } = t.context;
  const date = async (key: string) =>
    (await s3.call('HEAD', `/${disk}/${key}`)).headers.get('last-modified') ?? '';
  const wrong = {
    etag: '<ETag>"00000000000000000000000000000000"</ETag>',
    size: '<Size>9</Size>',
    time: '<LastModifiedTime>1970-01-01T00:00:00Z</LastModifiedTime>',
    version: '<VersionId>abc</VersionId>',
  };
  for (const key of [...Object.keys(wrong), 'right']) await s3.put(disk, `many/${key}`, 'content');
  const md5 = createHash('md5').update('content').digest('hex');
  const right = `<ETag>${md5}</ETag><Size>7</Size><VersionId>null</VersionId><LastModifiedTime>${await date('many/right')}</LastModifiedTime>`;
  const objects = Object.entries({ ...wrong, right })
    .map(([key, elements]) => `<Object><Key>many/${key}</Key>${elements}</Object>`)
    .join('');
  const body = `<Delete>${objects}</Delete>`;
  const { status, text } = await s3.call('POST', `/${disk}?delete`, { body });
  t.is(status, 200);
  t.deepEqual(textsOf(text, 'Code'), [
    ...['PreconditionFailed', 'PreconditionFailed', 'PreconditionFailed', 'NoSuchVersion'],
  ]);
  const { text: left } = await s3.call('GET', `/${disk}?list-type=2&prefix=many/`);
  t.deepEqual(textsOf(left, 'Key'), ['many/etag', 'many/size', 'many/time', 'many/version']);
  const unknown = `<Delete><Object><Key>many/etag</Key><Future>1</Future></Object></Delete>`;
  t.is((await s3.call('POST', `/${disk}?delete`, { body: unknown })).status, 501);
  t.is((await s3.call('HEAD', `/${disk}/many/etag`)).status, 200);
});

test('the version null is the object, and no other version is', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'versioned', 'content');
  const target = `/${disk}/versioned`;
  t.is((await s3.call('GET', `${target}?versionId=null`)).text, 'content');
  for (const method of ['GET', 'HEAD', 'DELETE']) {
    t.is((await s3.call(method, `${target}?versionId=3HL4kqtJvjVBH40Nrjfkd`)).status, 404, method);
  }
  t.is((await s3.call('GET', `${target}?versionId=`)).code, 'InvalidArgument');
  t.is((await s3.call('PUT', `${target}?versionId=null`, { body: 'x' })).status, 501);
  const copied = await s3.call('PUT', `/${disk}/versioned-copy`, {
    headers: { 'x-amz-copy-source': `${disk}/versioned?versionId=abc` },
  });
  t.is(copied.code, 'NoSuchVersion');
  t.is((await s3.call('GET', target)).text, 'content');
  t.is((await s3.call('DELETE', `${target}?versionId=null`)).status, 204);
});

test('If-Match on what is absent answers that it is absent', async (t) => {
  const { s3, disk } = t.context;
  const headers = { 'if-match': '"00000000000000000000000000000000"' };
  const put = await s3.put(disk, 'absent', 'x', headers);
  t.deepEqual([put.status, put.code], [404, 'NoSuchKey']);
  const completed = await complete(t.context, await upload(t.context, 'absent'), headers);
  t.deepEqual([completed.status, completed.code], [404, 'NoSuchKey']);
});

test('a body must say how long it is, also through control', async (t) => {
  const { s3, rest, disk } = t.context;
  for (const { baseUrl, key } of [s3, rest]) {
    const request = (head: string) =>
      sendRaw(baseUrl, `${head}\r\nHost: x\r\nAuthorization: ${key}\r\nConnection: close\r\n\r\n`);
    const [put] = await request(`PUT /${disk}/no-length HTTP/1.1`);
    t.is(put?.status, 411, baseUrl);
    t.regex(put?.text ?? '', /<Code>MissingContentLength</u);
    const [created] = await request(`POST /${disk}/no-length?uploads HTTP/1.1`);
    t.is(created?.status, 200, 'a request that needs no body needs no length');
  }
  t.is((await s3.call('HEAD', `/${disk}/no-length`)).status, 404);
});

test('an empty expectation is none, and an unknown one is refused in XML', async (t) => {
  const { s3, disk } = t.context;
  const send = (expect: string) =>
    sendRaw(
      s3.baseUrl,
      `PUT /${disk}/expected HTTP/1.1\r\nHost: x\r\nAuthorization: ${s3.key}\r\nExpect:${expect}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok`,
    );
  t.is((await send(''))[0]?.status, 200);
  t.is((await s3.get(disk, 'expected')).text, 'ok');
  const [unknown] = await send(' a-miracle');
  t.is(unknown?.status, 417);
  t.regex(unknown?.text ?? '', /<Error><Code>/u);
});

test('a checksum is kept with its object until the object changes', async (t) => {
  const { api, s3, disk } = t.context;
  const value = sha256('content').toString('base64');
  const put = await s3.put(disk, 'summed', 'content', { 'x-amz-checksum-sha256': value });
  t.is(put.headers.get('x-amz-checksum-sha256'), value);
  const get = await s3.get(disk, 'summed', ENABLED);
  t.is(get.headers.get('x-amz-checksum-sha256'), value);
  t.is(get.headers.get('x-amz-checksum-type'), 'FULL_OBJECT');
  t.is((await s3.get(disk, 'summed')).headers.get('x-amz-checksum-sha256'), null);
  const ranged = await s3.get(disk, 'summed', { ...ENABLED, range: 'bytes=0-1' });
  t.is(ranged.headers.get('x-amz-checksum-sha256'), null);
  const attributes = await s3.call('GET', `/${disk}/summed?attributes`, {
    headers: { 'x-amz-object-attributes': 'ETag,Checksum,ObjectSize' },
  });
  t.deepEqual(textsOf(attributes.text, 'ChecksumSHA256'), [value]);
  t.deepEqual(textsOf(attributes.text, 'ObjectSize'), ['7']);
  await exec(api, disk, 'echo changed > summed');
  t.is((await s3.get(disk, 'summed', ENABLED)).headers.get('x-amz-checksum-sha256'), null);
});

test('a directory keeps the metadata that it was put with, also by a copy onto itself', async (t) => {
  const { s3, disk } = t.context;
  const target = `/${disk}/described/`;
  const given = {
    ...{ 'content-type': 'text/x-mine', 'cache-control': 'no-cache', 'x-amz-meta-mode': '16877' },
    'x-amz-checksum-sha256': sha256('').toString('base64'),
  };
  const shown = async (): Promise<Record<string, string | null>> => {
    const { headers } = await s3.call('HEAD', target, { headers: ENABLED });
    return Object.fromEntries(Object.keys(given).map((name) => [name, headers.get(name)]));
  };
  t.is((await s3.call('PUT', target, { headers: given })).status, 200);
  t.deepEqual(await shown(), given);
  const headers = {
    ...{ 'x-amz-copy-source': target, 'x-amz-metadata-directive': 'REPLACE' },
    ...{ 'content-type': 'application/x-directory', 'x-amz-meta-mode': '16832' },
  };
  t.is((await s3.call('PUT', target, { headers })).status, 200);
  const { 'content-type': type, 'x-amz-meta-mode': mode } = headers;
  const replaced = { 'content-type': type, 'x-amz-meta-mode': mode };
  t.deepEqual(await shown(), { ...given, ...replaced, 'cache-control': 'no-transform' });
});

test('a copy has the checksum of its source, or the one that is asked for', async (t) => {
  const { s3, disk } = t.context;
  const value = sha256('content').toString('base64');
  await s3.put(disk, 'copied', 'content', { 'x-amz-checksum-sha256': value });
  const source = { 'x-amz-copy-source': `${disk}/copied` };
  const same = await s3.put(disk, 'copies/same', '', source);
  t.deepEqual(textsOf(same.text, 'ChecksumSHA256'), [value]);
  const other = await s3.put(disk, 'copies/other', '', {
    ...source,
    'x-amz-checksum-algorithm': 'CRC32',
  });
  t.deepEqual(textsOf(other.text, 'ChecksumCRC32'), [crcOf(Buffer.from('content'))]);
  const { headers } = await s3.get(disk, 'copies/other', ENABLED);
  t.is(headers.get('x-amz-checksum-crc32'), crcOf(Buffer.from('content')));
});

test('a copy with other metadata must say that it replaces them', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'colored', 'content', { 'x-amz-meta-color': 'red' });
  const headers = { 'x-amz-copy-source': `${disk}/colored`, 'x-amz-meta-color': 'blue' };
  const refused = await s3.put(disk, 'recolored', '', headers);
  t.deepEqual([refused.status, refused.code], [400, 'InvalidRequest']);
  const replaced = { ...headers, 'x-amz-metadata-directive': 'REPLACE' };
  t.is((await s3.put(disk, 'recolored', '', replaced)).status, 200);
  t.is((await s3.get(disk, 'recolored')).headers.get('x-amz-meta-color'), 'blue');
});

test('the checksum of a body in parts is checked and kept: composite', async (t) => {
  const { s3 } = t.context;
  const ofPart = (body: Buffer) => ({ 'x-amz-checksum-sha256': sha256(body).toString('base64') });
  const created = { 'x-amz-checksum-algorithm': 'SHA256' };
  const uploading = await upload(t.context, 'composite', created, ofPart);
  const values = [FIRST, SECOND].map((body) => sha256(body).toString('base64'));
  const { text } = await s3.call('GET', `${uploading.target}?uploadId=${uploading.uploadId}`);
  t.deepEqual(textsOf(text, 'ChecksumSHA256'), values);
  const elements = values.map((value) => `<ChecksumSHA256>${value}</ChecksumSHA256>`);
  const swapped = await complete(t.context, uploading, {}, elements.toReversed());
  t.deepEqual([swapped.status, swapped.code], [400, 'InvalidPart']);
  const composite = `${sha256(Buffer.concat([FIRST, SECOND].map(sha256))).toString('base64')}-2`;
  const done = await complete(t.context, uploading, {}, elements);
  t.deepEqual(textsOf(done.text, 'ChecksumSHA256'), [composite]);
  t.deepEqual(textsOf(done.text, 'ChecksumType'), ['COMPOSITE']);
  const { headers } = await s3.call('HEAD', uploading.target, { headers: ENABLED });
  t.is(headers.get('x-amz-checksum-sha256'), composite);
  const part = await s3.call('GET', `${uploading.target}?partNumber=2`, { headers: ENABLED });
  t.is(part.headers.get('x-amz-checksum-sha256'), values[1] ?? '');
  const attributes = await s3.call('GET', `${uploading.target}?attributes`, {
    headers: { 'x-amz-object-attributes': 'ObjectParts', 'x-amz-part-number-marker': '1' },
  });
  t.deepEqual(textsOf(attributes.text, 'PartsCount'), ['2']);
  t.deepEqual(textsOf(attributes.text, 'PartNumber'), ['2']);
  t.deepEqual(textsOf(attributes.text, 'ChecksumSHA256'), values.slice(1));
});

test('listings say which checksum an object, and an upload under way, has', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'listed/1-none', 'x');
  const sum = { 'x-amz-checksum-crc32': crcOf(Buffer.from('x')) };
  await s3.put(disk, 'listed/2-crc', 'x', sum);
  const created = { 'x-amz-checksum-algorithm': 'SHA256' };
  const uploading = await upload(t.context, 'listed/3-parts', created);
  const uploads = await s3.call('GET', `/${disk}?uploads=&prefix=listed/`);
  t.deepEqual(textsOf(uploads.text, 'ChecksumAlgorithm'), ['SHA256']);
  t.is((await complete(t.context, uploading)).status, 200);
  for (const version of ['list-type=2&', '']) {
    const { text } = await s3.call('GET', `/${disk}?${version}prefix=listed/`);
    t.is(textsOf(text, 'Key').length, 3);
    t.deepEqual(textsOf(text, 'ChecksumAlgorithm'), ['CRC32', 'SHA256']);
    t.deepEqual(textsOf(text, 'ChecksumType'), ['FULL_OBJECT', 'COMPOSITE']);
  }
});

test('the checksum of a body in parts is checked and kept: full object', async (t) => {
  const { s3 } = t.context;
  const created = { 'x-amz-checksum-algorithm': 'CRC32', 'x-amz-checksum-type': 'FULL_OBJECT' };
  const uploading = await upload(t.context, 'full-object', created);
  const wrong = { 'x-amz-checksum-crc32': crcOf(FIRST) };
  const refused = await complete(t.context, uploading, wrong);
  t.deepEqual([refused.status, refused.code], [400, 'BadDigest']);
  const wrongSize = await complete(t.context, uploading, { 'x-amz-mp-object-size': '5' });
  t.deepEqual([wrongSize.status, wrongSize.code], [400, 'InvalidRequest']);
  t.is((await s3.call('HEAD', uploading.target)).status, 404);
  const done = await complete(t.context, uploading, {
    'x-amz-checksum-crc32': crcOf(WHOLE),
    'x-amz-mp-object-size': String(WHOLE.length),
  });
  t.deepEqual([done.status, ...textsOf(done.text, 'ChecksumCRC32')], [200, crcOf(WHOLE)]);
  const { headers } = await s3.call('HEAD', uploading.target, { headers: ENABLED });
  t.is(headers.get('x-amz-checksum-crc32'), crcOf(WHOLE));
});

test('a full-object checksum is checked although the upload was created without', async (t) => {
  const uploading = await upload(t.context, 'unannounced');
  const refused = await complete(t.context, uploading, { 'x-amz-checksum-crc32': crcOf(FIRST) });
  t.deepEqual([refused.status, refused.code], [400, 'BadDigest']);
  const done = await complete(t.context, uploading, { 'x-amz-checksum-crc32': crcOf(WHOLE) });
  t.deepEqual([done.status, ...textsOf(done.text, 'ChecksumCRC32')], [200, crcOf(WHOLE)]);
});

test('parts with another checksum than their upload has are refused', async (t) => {
  const { s3, disk } = t.context;
  const headers = { 'x-amz-checksum-algorithm': 'CRC32' };
  const { text } = await s3.call('POST', `/${disk}/mixed?uploads`, { headers });
  const [uploadId = ''] = textsOf(text, 'UploadId');
  const value = sha256('x').toString('base64');
  const target = `/${disk}/mixed?uploadId=${uploadId}&partNumber=1`;
  const part = { body: 'x', headers: { 'x-amz-checksum-sha256': value } };
  t.is((await s3.call('PUT', target, part)).code, 'InvalidRequest');
});
