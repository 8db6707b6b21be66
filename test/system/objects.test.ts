import { createHash } from 'node:crypto';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { escapeKey, ObjectClient, s3UrlOf, textsOf } from '../helpers/objects.ts';
import { Stack } from '../helpers/stack.ts';
import { MiB } from '../../shared/units.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  /** Clients of the agent's address and of control's, which serves REST too. */
  s3: ObjectClient;
  rest: ObjectClient;
  disk: string;
}

const test = anyTest as TestFn<Context>;

const md5 = (bytes: string | Buffer): string => createHash('md5').update(bytes).digest('hex');

test.before(async (t) => {
  const stack = await Stack.start();
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  Object.assign(t.context, {
    stack,
    api,
    disk: id,
    s3: new ObjectClient(s3UrlOf(stack), api.key),
    rest: new ObjectClient(stack.baseUrl, api.key),
  });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

for (const way of ['s3', 'rest'] as const) {
  test(`an object is put, found, read, listed and deleted (${way})`, async (t) => {
    const { disk } = t.context;
    const client = t.context[way];
    const key = `${way}/a b+c%(1)?ü.txt`;
    const put = await client.put(disk, key, 'hello', { 'content-type': 'text/x-mine' });
    t.is(put.status, 200);
    t.is(put.headers.get('etag'), `"${md5('hello')}"`);

    const target = `/${disk}/${escapeKey(key)}`;
    const head = await client.call('HEAD', target);
    t.is(head.status, 200);
    t.is(head.headers.get('content-length'), '5');
    t.is(head.headers.get('content-type'), 'text/x-mine');
    t.is(head.headers.get('etag'), `"${md5('hello')}"`);
    t.truthy(Date.parse(head.headers.get('last-modified') ?? ''));

    const get = await client.get(disk, key);
    t.is(get.text, 'hello');
    t.is(get.headers.get('etag'), `"${md5('hello')}"`);

    const list = await client.call('GET', `/${disk}?list-type=2&prefix=${way}/`);
    t.deepEqual(textsOf(list.text, 'Key'), [key]);
    t.deepEqual(textsOf(list.text, 'Size'), ['5']);
    t.deepEqual(textsOf(list.text, 'KeyCount'), ['1']);

    t.is((await client.call('DELETE', target)).status, 204);
    t.is((await client.call('HEAD', target)).status, 404);
    t.is((await client.call('DELETE', target)).status, 204);
    const gone = await client.call('GET', target);
    t.deepEqual([gone.status, gone.code], [404, 'NoSuchKey']);
  });
}

test('objects are at once visible to commands as files, and files as objects', async (t) => {
  const { api, s3, disk } = t.context;
  t.is((await s3.put(disk, 'both/ways.txt', 'from put\n')).status, 200);
  const seen = await exec(api, disk, 'cat both/ways.txt; echo from exec > both/ways.txt');
  t.is(seen.stdout, 'from put\n');
  const get = await s3.get(disk, 'both/ways.txt');
  t.is(get.text, 'from exec\n');
  t.regex(get.headers.get('etag') ?? '', /^"[0-9a-f]{32}-0"$/u);
  t.not(get.headers.get('etag'), `"${md5('from put\n')}"`);
});

test('a page among the objects does not run in the origin of the API', async (t) => {
  const { rest, disk } = t.context;
  await rest.put(disk, 'page.html', '<script>alert(1)</script>', { 'content-type': 'text/html' });
  const { headers, text } = await rest.get(disk, 'page.html');
  t.is(text, '<script>alert(1)</script>');
  t.regex(headers.get('content-security-policy') ?? '', /\bsandbox$/u);
  t.is(headers.get('x-content-type-options'), 'nosniff');
});

test('a request sets owner and mode; missing parents get the same owner', async (t) => {
  const { api, s3, disk } = t.context;
  const headers = { 'x-archil-mode': '640', 'x-archil-uid': '1000', 'x-archil-gid': '1001' };
  t.is((await s3.put(disk, 'posix/deep/file', 'x', headers)).status, 200);
  t.is((await s3.put(disk, 'posix/plain', 'x')).status, 200);
  const listed = await exec(
    api,
    disk,
    'stat -c "%n %a %u %g" posix posix/deep posix/deep/file posix/plain',
  );
  t.is(
    listed.stdout,
    'posix 755 1000 1001\nposix/deep 755 1000 1001\nposix/deep/file 640 1000 1001\nposix/plain 644 0 0\n',
  );
  const bad = await s3.put(disk, 'posix/bad', 'x', { 'x-archil-mode': '8' });
  t.deepEqual([bad.status, bad.code], [400, 'InvalidArgument']);
});

test('a directory marker makes a directory; with a body it is refused', async (t) => {
  const { api, s3, disk } = t.context;
  t.is((await s3.put(disk, 'marked/', '')).status, 200);
  t.is((await exec(api, disk, 'stat -c %F marked')).stdout, 'directory\n');
  t.is((await s3.call('HEAD', `/${disk}/marked/`)).status, 200);
  t.is((await s3.call('HEAD', `/${disk}/marked`)).status, 404);
  const filled = await s3.put(disk, 'marked/', 'body');
  t.deepEqual([filled.status, filled.code], [400, 'InvalidArgument']);
});

test('appending creates an object and extends it, by at most 1 MiB at a time', async (t) => {
  const { s3, disk } = t.context;
  const append = (body: string | Buffer) => s3.call('PUT', `/${disk}/log?append=true`, { body });
  t.is((await append('one\n')).headers.get('etag'), `"${md5('one\n')}"`);
  t.is((await append('two\n')).headers.get('etag'), `"${md5('one\ntwo\n')}"`);
  t.is((await s3.get(disk, 'log')).text, 'one\ntwo\n');
  const large = await append(Buffer.alloc(MiB + 1));
  t.deepEqual([large.status, large.code], [400, 'EntityTooLarge']);
});

test('ranges of an object: one inside, a suffix, and one beyond the end', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'ranged', '0123456789');
  const part = await s3.get(disk, 'ranged', { range: 'bytes=2-4' });
  t.deepEqual([part.status, part.text], [206, '234']);
  t.is(part.headers.get('content-range'), 'bytes 2-4/10');
  t.is((await s3.get(disk, 'ranged', { range: 'bytes=-3' })).text, '789');
  const beyond = await s3.get(disk, 'ranged', { range: 'bytes=20-30' });
  t.deepEqual([beyond.status, beyond.code], [416, 'InvalidRange']);
  t.is(beyond.headers.get('content-range'), 'bytes */10');
});

test('conditions on reading and on writing', async (t) => {
  const { s3, disk } = t.context;
  const { headers } = await s3.put(disk, 'conditional', 'one');
  const etag = headers.get('etag') ?? '';
  t.is((await s3.get(disk, 'conditional', { 'if-none-match': etag })).status, 304);
  const other = await s3.get(disk, 'conditional', { 'if-match': '"other"' });
  t.deepEqual([other.status, other.code], [412, 'PreconditionFailed']);
  const again = await s3.put(disk, 'conditional', 'two', { 'if-none-match': '*' });
  t.deepEqual([again.status, again.code], [412, 'PreconditionFailed']);
  t.is((await s3.put(disk, 'conditional', 'three', { 'if-match': etag })).status, 200);
  t.is((await s3.put(disk, 'fresh', 'x', { 'if-none-match': '*' })).status, 200);
  t.is((await s3.get(disk, 'conditional')).text, 'three');
});

test('a body that does not match its checksum is refused and not kept', async (t) => {
  const { s3, disk } = t.context;
  const wrong = createHash('md5').update('other').digest('base64');
  const refused = await s3.put(disk, 'checked', 'body', { 'content-md5': wrong });
  t.deepEqual([refused.status, refused.code], [400, 'BadDigest']);
  t.is((await s3.get(disk, 'checked')).status, 404);
  const right = createHash('md5').update('body').digest('base64');
  t.is((await s3.put(disk, 'checked', 'body', { 'content-md5': right })).status, 200);
});

test('a large object in parts, its parts and uploads listed meanwhile', async (t) => {
  const { s3, disk } = t.context;
  const target = `/${disk}/parts/large.bin`;
  const created = await s3.call('POST', `${target}?uploads=`, {
    headers: { 'content-type': 'a/b' },
  });
  const [uploadId = ''] = textsOf(created.text, 'UploadId');
  t.not(uploadId, '');
  const parts = [Buffer.alloc(5 * MiB, 'a'), Buffer.alloc(5 * MiB, 'b'), Buffer.from('end')];
  const etags: string[] = [];
  for (const [index, body] of parts.entries()) {
    const query = `?uploadId=${uploadId}&partNumber=${index + 1}`;
    const { status, headers } = await s3.call('PUT', `${target}${query}`, { body });
    t.is(status, 200);
    etags.push(headers.get('etag') ?? '');
  }
  t.deepEqual(
    etags,
    parts.map((part) => `"${md5(part)}"`),
  );
  const listed = await s3.call('GET', `${target}?uploadId=${uploadId}`);
  t.deepEqual(textsOf(listed.text, 'PartNumber'), ['1', '2', '3']);
  const uploads = await s3.call('GET', `/${disk}?uploads=&prefix=parts/`);
  t.deepEqual(textsOf(uploads.text, 'UploadId'), [uploadId]);
  t.is((await s3.call('GET', target)).status, 404);

  const document = (numbers: number[]): string =>
    `<CompleteMultipartUpload>${numbers
      .map((n) => `<Part><PartNumber>${n}</PartNumber><ETag>${etags[n - 1]}</ETag></Part>`)
      .join('')}</CompleteMultipartUpload>`;
  const complete = (body: string) => s3.call('POST', `${target}?uploadId=${uploadId}`, { body });
  const order = await complete(document([2, 1]));
  t.deepEqual([order.status, order.code], [400, 'InvalidPartOrder']);
  const small = await complete(
    document([3]).replace('</Comp', '<Part><PartNumber>4</PartNumber><ETag>x</ETag></Part></Comp'),
  );
  t.deepEqual([small.status, small.code], [400, 'InvalidPart']);
  const malformed = await complete('<CompleteMultipartUpload>');
  t.deepEqual([malformed.status, malformed.code], [400, 'MalformedXML']);

  const done = await complete(document([1, 2, 3]));
  t.is(done.status, 200);
  const whole = createHash('md5');
  for (const part of parts) whole.update(createHash('md5').update(part).digest());
  t.deepEqual(textsOf(done.text, 'ETag'), [`"${whole.digest('hex')}-3"`]);
  const get = await s3.call('GET', target);
  t.true(get.body.equals(Buffer.concat(parts)));
  t.is(get.headers.get('content-type'), 'a/b');
  t.deepEqual([get.headers.get('etag')], textsOf(done.text, 'ETag'));
  const unknown = await s3.call('GET', `${target}?uploadId=unknown`);
  t.deepEqual([unknown.status, unknown.code], [404, 'NoSuchUpload']);
});

test('a part that is too small is refused at completion, and an upload can be aborted', async (t) => {
  const { s3, disk } = t.context;
  const target = `/${disk}/small-parts`;
  const created = await s3.call('POST', `${target}?uploads`);
  const [uploadId = ''] = textsOf(created.text, 'UploadId');
  const put = (n: number) =>
    s3.call('PUT', `${target}?uploadId=${uploadId}&partNumber=${n}`, { body: 'x' });
  const [one, two] = [await put(1), await put(2)];
  const body = `<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>${one.headers.get('etag')}</ETag></Part><Part><PartNumber>2</PartNumber><ETag>${two.headers.get('etag')}</ETag></Part></CompleteMultipartUpload>`;
  const small = await s3.call('POST', `${target}?uploadId=${uploadId}`, { body });
  t.deepEqual([small.status, small.code], [400, 'EntityTooSmall']);
  t.is((await s3.call('DELETE', `${target}?uploadId=${uploadId}`)).status, 204);
  const gone = await put(1);
  t.deepEqual([gone.status, gone.code], [404, 'NoSuchUpload']);
});

test('listing by level, in pages whose tokens lead on', async (t) => {
  const { s3, disk, api } = t.context;
  const keys = ['list/a', 'list/b/1', 'list/b/2', 'list/c', 'list/d.txt', 'list/d/x'];
  for (const key of keys) await s3.put(disk, key, 'x');
  await exec(api, disk, 'mkdir list/empty');
  const level = await s3.call('GET', `/${disk}?list-type=2&prefix=list/&delimiter=/`);
  t.deepEqual(textsOf(level.text, 'Key'), ['list/a', 'list/c', 'list/d.txt']);
  t.deepEqual(textsOf(level.text, 'Prefix'), ['list/', 'list/b/', 'list/d/', 'list/empty/']);
  const found: string[] = [];
  let token = '';
  do {
    const query = `list-type=2&prefix=list/&max-keys=2&start-after=list/a${token}`;
    const page = await s3.call('GET', `/${disk}?${query}`);
    found.push(...textsOf(page.text, 'Key'));
    const [next] = textsOf(page.text, 'NextContinuationToken');
    token = next === undefined ? '' : `&continuation-token=${next}`;
  } while (token !== '');
  t.deepEqual(found, keys.slice(1));
  const v1 = await s3.call('GET', `/${disk}?prefix=list/&max-keys=3&marker=list/a`);
  t.deepEqual(textsOf(v1.text, 'Key'), keys.slice(1, 4));
  t.deepEqual(textsOf(v1.text, 'NextMarker'), ['list/c']);
  const garbled = await s3.call('GET', `/${disk}?list-type=2&continuation-token=%00`);
  t.deepEqual([garbled.status, garbled.code], [400, 'InvalidArgument']);
});

test('one request deletes many objects, whether they exist or not', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'bulk/a&b', 'x');
  await s3.put(disk, 'bulk/c', 'x');
  const body =
    '<Delete><Object><Key>bulk/a&amp;b</Key></Object><Object><Key>bulk/c</Key></Object><Object><Key>bulk/../x</Key></Object></Delete>';
  const deleted = await s3.call('POST', `/${disk}?delete=`, { body });
  t.is(deleted.status, 200);
  t.deepEqual(textsOf(deleted.text, 'Code'), []);
  t.is(textsOf(deleted.text, 'Key').length, 3);
  t.deepEqual(textsOf((await s3.call('GET', `/${disk}?list-type=2&prefix=bulk/`)).text, 'Key'), []);
});

test('keys that no file can have: 400 to write, 404 to read, 204 to delete', async (t) => {
  const { s3, disk } = t.context;
  for (const key of ['a//b', 'a%2F..%2Fb', 'k'.repeat(256), '/']) {
    const target = `/${disk}/${key}`;
    t.is((await s3.call('PUT', target, { body: 'x' })).status, 400, key);
    t.is((await s3.call('GET', target)).status, 404, key);
    t.is((await s3.call('HEAD', target)).status, 404, key);
    t.is((await s3.call('DELETE', target)).status, 204, key);
  }
  const folder = `/${disk}/kept-folder/`;
  t.is((await s3.call('PUT', folder, { body: 'x' })).status, 400);
  t.is((await s3.call('PUT', folder)).status, 200);
  const listed = (await s3.call('GET', `/${disk}?list-type=2&prefix=kept-folder`)).text;
  t.deepEqual(textsOf(listed, 'Key'), ['kept-folder/']);
  t.is((await s3.call('DELETE', folder)).status, 204);
});

test('2 KiB of metadata are kept, counted as S3 counts them', async (t) => {
  const { s3, disk } = t.context;
  const target = `/${disk}/described`;
  const put = (headers: Record<string, string>) => s3.call('PUT', target, { body: 'x', headers });
  const most = { 'x-amz-meta-ab': '"'.repeat(2040), 'x-amz-meta-cde': 'xyz' };
  const other = { 'cache-control': 'no-cache', 'content-disposition': 'a'.repeat(200) };
  t.is((await put({ ...most, ...other })).status, 200);
  const got = await s3.call('HEAD', target);
  for (const [name, value] of Object.entries({ ...most, ...other })) {
    t.is(got.headers.get(name), value);
  }
  const refused = await put({ ...most, 'x-amz-meta-cde': 'wxyz' });
  t.deepEqual([refused.status, refused.code], [400, 'MetadataTooLarge']);
  const many = Array.from({ length: 60 }, (_, n) => [`x-amz-meta-${n}`, '']);
  t.is((await put(Object.fromEntries(many) as Record<string, string>)).status, 200);
  const { headers } = await s3.call('HEAD', target);
  t.is(headers.get('x-amz-meta-59'), '');
  t.is(headers.get('cache-control'), 'no-transform'); // None was stored.
  const wide = Buffer.from('ж'.repeat(1000)).toString('latin1');
  t.is((await put({ 'x-amz-meta-wide': wide })).status, 200);
  t.is((await s3.call('HEAD', target)).headers.get('x-amz-meta-wide'), wide);
  const query = `x-amz-meta-query=${encodeURIComponent('é ж')}`;
  t.is((await s3.call('PUT', `${target}?${query}`, { body: 'x' })).status, 200);
  const given = (await s3.call('HEAD', target)).headers.get('x-amz-meta-query');
  t.is(given, Buffer.from('é ж').toString('latin1'));
});

test('listings name the owner where S3 does', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'owned/file', 'x');
  const created = await s3.call('POST', `/${disk}/owned/upload?uploads`);
  const [uploadId = ''] = textsOf(created.text, 'UploadId');
  const owners = async (path: string): Promise<string[]> => {
    const { text } = await s3.call('GET', `/${disk}${path}`);
    return ['Owner', 'Initiator'].filter((name) => text.includes(`<${name}><ID>`));
  };
  t.deepEqual(await owners('?prefix=owned/'), ['Owner']);
  t.deepEqual(await owners('?list-type=2&prefix=owned/'), []);
  t.deepEqual(await owners('?list-type=2&prefix=owned/&fetch-owner=true'), ['Owner']);
  t.deepEqual(await owners('?uploads&prefix=owned/'), ['Owner', 'Initiator']);
  t.deepEqual(await owners(`/owned/upload?uploadId=${uploadId}`), ['Owner', 'Initiator']);
  const wrong = await s3.call('GET', `/${disk}?list-type=2&fetch-owner=maybe`);
  t.deepEqual([wrong.status, wrong.code], [400, 'InvalidArgument']);
});

test('any delimiter groups keys', async (t) => {
  const { s3, disk } = t.context;
  for (const key of ['grouped/a-1', 'grouped/a-2', 'grouped/b', 'grouped/c/d-e'])
    await s3.put(disk, key, 'x');
  const list = async (query: string) =>
    (await s3.call('GET', `/${disk}?prefix=grouped/&${query}`)).text;
  const listed = await list('delimiter=-');
  t.deepEqual(textsOf(listed, 'Key'), ['grouped/b']);
  t.deepEqual(textsOf(listed, 'Prefix').slice(1), ['grouped/a-', 'grouped/c/d-']);
  const first = await list('delimiter=-&max-keys=1');
  t.deepEqual(textsOf(first, 'NextMarker'), ['grouped/a-']);
  const second = await list('delimiter=-&max-keys=1&marker=grouped/a-');
  t.deepEqual(textsOf(second, 'Key'), ['grouped/b']);
});

test('buckets are listed by prefix, region and page', async (t) => {
  const { stack } = t.context;
  const api = await stack.newClient();
  const s3 = new ObjectClient(t.context.s3.baseUrl, api.key);
  const ids: string[] = [];
  for (let count = 0; count < 3; count += 1) ids.push((await createDisk(api)).id);
  ids.sort();
  const names = async (query: string) => textsOf((await s3.call('GET', `/?${query}`)).text, 'Name');
  t.deepEqual(await names(''), ids);
  t.deepEqual(await names(`prefix=${ids[1]}`), ids.slice(1, 2));
  t.deepEqual(await names('bucket-region=elsewhere'), []);
  const page = await s3.call('GET', '/?max-buckets=2');
  t.deepEqual(textsOf(page.text, 'Name'), ids.slice(0, 2));
  const [token = ''] = textsOf(page.text, 'ContinuationToken');
  t.deepEqual(await names(`max-buckets=2&continuation-token=${token}`), ids.slice(2));
  t.deepEqual((await s3.call('GET', '/?max-buckets=0')).code, 'InvalidArgument');
});

test('copies keep or replace metadata', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'copied/from', 'bytes', { 'content-type': 'a/b', 'x-amz-meta-who': 'me' });
  const source = { 'x-amz-copy-source': `/${disk}/copied/from` };
  const copy = await s3.call('PUT', `/${disk}/copied/to`, { headers: source });
  t.is(copy.status, 200);
  const got = await s3.get(disk, 'copied/to');
  t.is(got.text, 'bytes');
  t.is(got.headers.get('content-type'), 'a/b');
  t.is(got.headers.get('x-amz-meta-who'), 'me');
  const itself = await s3.call('PUT', `/${disk}/copied/from`, { headers: source });
  t.deepEqual([itself.status, itself.code], [400, 'InvalidRequest']);
  const replaced = await s3.call('PUT', `/${disk}/copied/from`, {
    headers: { ...source, 'x-amz-metadata-directive': 'REPLACE', 'x-amz-meta-who': 'you' },
  });
  t.is(replaced.status, 200);
  t.is((await s3.get(disk, 'copied/from')).headers.get('x-amz-meta-who'), 'you');
});

test('refused credentials and missing things have their S3 error codes', async (t) => {
  const { stack, s3, disk } = t.context;
  const stranger = new ObjectClient(s3.baseUrl, (await stack.newClient()).key);
  const nobody = new ObjectClient(s3.baseUrl, 'key-nothing');
  const missing = '/dsk-0123456789abcdef';
  for (const [client, target, expected] of [
    [nobody, `/${disk}/x`, [403, 'AccessDenied']],
    [stranger, `/${disk}/x`, [404, 'NoSuchBucket']],
    [s3, `${missing}/x`, [404, 'NoSuchBucket']],
    [s3, '/elsewhere/x', [404, 'NoSuchBucket']],
    [s3, `/${disk}/x?acl`, [501, 'NotImplemented']],
    [s3, `/${disk}/a%2F..%2Fb`, [404, 'NoSuchKey']],
    [s3, `/${disk}/a%00b`, [404, 'NoSuchKey']],
    [s3, `/${disk}/${'k'.repeat(1025)}`, [404, 'NoSuchKey']],
  ] as const) {
    const { status, code } = await client.call('GET', target);
    t.deepEqual([status, code], [...expected], target);
  }
  const patch = await s3.call('PATCH', `/${disk}/x`);
  t.deepEqual([patch.status, patch.code], [405, 'MethodNotAllowed']);
  const again = await s3.call('PUT', `/${disk}`);
  t.deepEqual([again.status, again.code], [409, 'BucketAlreadyOwnedByYou']);
});

test('a file in the place of a directory, and a directory in the place of a file: 409', async (t) => {
  const { s3, disk } = t.context;
  await s3.put(disk, 'conflict/file', 'x');
  for (const key of ['conflict/file/below', 'conflict']) {
    const refused = await s3.put(disk, key, 'x');
    t.deepEqual([refused.status, refused.code], [409, 'OperationAborted'], key);
  }
  t.is((await s3.get(disk, 'conflict/file')).text, 'x');
});

test('the address of a WebSocket says so to a request that asks for none', async (t) => {
  const { s3 } = t.context;
  const path = '/sandboxes/01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f/connection';
  for (const target of [path, `${path}?token=x`]) {
    const { status, headers, text } = await s3.call('GET', target);
    t.is(status, 400);
    t.is(headers.get('content-type'), 'text/plain; charset=utf-8');
    t.regex(text, /WebSocket/u);
  }
  t.is((await s3.call('GET', `${path}s`)).code, 'NoSuchBucket');
});
