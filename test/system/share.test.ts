import anyTest, { type TestFn } from 'ava';
import * as fc from '../helpers/fast-check.ts';
import { readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parse } from 'content-disposition';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import {
  codeOf,
  curl,
  download,
  type Fetched,
  type Headers,
  share,
  splitParts,
} from '../helpers/shares.ts';
import { Stack } from '../helpers/stack.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  diskId: string;
  /** Creates a file with this content and a link to it. */
  url: string;
}

const test = anyTest as TestFn<Context>;
const SIZE = 600_000; // More than two buffers.
const content = Buffer.alloc(SIZE, Buffer.from(Array.from({ length: 251 }, (_, index) => index)));
const modified = 'Tue, 01 Jan 2019 00:00:00 GMT';

test.before(async (t) => {
  const stack = await Stack.start();
  const api = await stack.newClient();
  const { id: diskId } = await createDisk(api);
  const write = `open("data.bin","wb").write((bytes(range(251))*3000)[:${SIZE}])`;
  const made = await exec(
    api,
    diskId,
    `python3 -c '${write}'; touch -d 2019-01-01T00:00:00Z data.bin; touch empty; echo hi > page.html`,
  );
  t.is(made.exitCode, 0, made.stderr);
  Object.assign(t.context, { stack, api, diskId, url: await share(api, diskId, 'data.bin') });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

test('the file arrives complete, as an attachment that cannot run in the API’s origin', async (t) => {
  const { status, headers, body } = await download(t.context.url);
  t.is(status, 200);
  t.true(body.equals(content));
  t.like(headers, {
    'content-type': 'application/octet-stream',
    'content-length': String(SIZE),
    'content-disposition': 'attachment; filename=data.bin',
    'accept-ranges': 'bytes',
    'last-modified': modified,
    'x-content-type-options': 'nosniff',
    'content-security-policy': "default-src 'none'; sandbox",
    'cross-origin-resource-policy': 'cross-origin',
    'referrer-policy': 'no-referrer',
    'cache-control': 'private, no-cache, no-transform',
  });
  t.regex(headers.etag ?? '', /^"[0-9a-f]{32}"$/u);
});

test('HEAD answers the same headers without a body', async (t) => {
  const get = await download(t.context.url);
  const head = await download(t.context.url, { range: 'bytes=0-1' }, 'HEAD');
  t.is(head.status, 200);
  t.is(head.body.length, 0);
  for (const name of ['content-type', 'content-length', 'content-disposition', 'etag']) {
    t.is(head.headers[name], get.headers[name]);
  }
  t.is((await download(t.context.url, { 'if-match': '"x"' }, 'HEAD')).status, 412);
  t.is((await download(`${t.context.url}x`, {}, 'HEAD')).status, 403);
});

test('types follow the extension; an empty file is empty', async (t) => {
  const { api, diskId } = t.context;
  const page = await download(await share(api, diskId, 'page.html'));
  t.is(page.headers['content-type'], 'text/html; charset=utf-8');
  const empty = await share(api, diskId, 'empty');
  t.like(await download(empty), { status: 200, body: Buffer.alloc(0) });
  t.is((await download(empty, { range: 'bytes=0-' })).headers['content-range'], 'bytes */0');
});

test('requested ranges are served', async (t) => {
  const { url } = t.context;
  const one = await download(url, { range: 'bytes=262140-262150' });
  t.is(one.status, 206);
  t.is(one.headers['content-range'], `bytes 262140-262150/${SIZE}`);
  t.true(one.body.equals(content.subarray(262_140, 262_151)));
  t.true((await download(url, { range: 'bytes=-5' })).body.equals(content.subarray(-5)));
  const open = await download(url, { range: `bytes=${SIZE - 3}-` });
  t.true(open.body.equals(content.subarray(-3)));

  const several = await download(url, { range: 'bytes=0-1,599990-,3-3,2-2' });
  t.is(several.status, 206);
  t.is(Number(several.headers['content-length']), several.body.length);
  t.deepEqual(splitParts(several), [
    { range: `bytes 0-3/${SIZE}`, bytes: content.subarray(0, 4) },
    { range: `bytes 599990-599999/${SIZE}`, bytes: content.subarray(-10) },
  ]);
});

test('a range beyond the end answers 416 with the size; a malformed one is ignored', async (t) => {
  const { url } = t.context;
  const beyond = await download(url, { range: `bytes=${SIZE}-` });
  t.is(beyond.status, 416);
  t.is(beyond.headers['content-range'], `bytes */${SIZE}`);
  t.is(codeOf(beyond), 'range_not_satisfiable');
  t.is((await download(url, { range: `bytes=${'9'.repeat(400)}-` })).status, 416);
  for (const range of ['bytes=2-1', 'bytes=x', 'lines=1-2', `bytes=${'0-0,'.repeat(17)}`]) {
    t.is((await download(url, { range })).status, 200, range);
  }
});

test('preconditions decide first', async (t) => {
  const { url } = t.context;
  const { etag = '' } = (await download(url, {}, 'HEAD')).headers;
  const cases: [Headers, number][] = [
    [{ 'if-none-match': etag }, 304],
    [{ 'if-none-match': `"x", W/${etag}`, range: 'bytes=0-0' }, 304],
    [{ 'if-none-match': '"x"', 'if-modified-since': modified }, 200],
    [{ 'if-modified-since': modified }, 304],
    [{ 'if-match': etag, range: 'bytes=0-0' }, 206],
    [{ 'if-match': '"x"', range: `bytes=${SIZE}-` }, 412],
    [{ 'if-unmodified-since': 'Mon, 31 Dec 2018 23:59:59 GMT' }, 412],
    [{ 'if-unmodified-since': modified }, 200],
    [{ 'if-range': etag, range: 'bytes=0-0' }, 206],
    [{ 'if-range': modified, range: 'bytes=0-0' }, 206],
    [{ 'if-range': '"x"', range: 'bytes=0-0' }, 200],
  ];
  for (const [headers, status] of cases) {
    const reply = await download(url, headers);
    t.is(reply.status, status, JSON.stringify(headers));
    if (status === 304) t.like(reply, { body: Buffer.alloc(0), headers: { etag } });
    if (status === 412) t.is(codeOf(reply), 'precondition_failed');
  }
});

function expected(reply: Fetched): Buffer | undefined {
  if (reply.status === 200) return content;
  const [, start, end] = /^bytes (\d+)-(\d+)\//u.exec(reply.headers['content-range'] ?? '') ?? [];
  return start === undefined ? undefined : content.subarray(Number(start), Number(end) + 1);
}

test('any range has the bytes of that part of the file', async (t) => {
  const { url } = t.context;
  const position = fc.nat(SIZE + 10);
  const spec = fc.oneof(
    fc.tuple(position, fc.option(position)).map(([from, to]) => `${from}-${to ?? ''}`),
    position.map((length) => `-${length}`),
  );
  const specs = fc.array(spec, { minLength: 1, maxLength: 4 });
  await fc.assert(
    fc.asyncProperty(specs, async (list) => {
      const reply = await download(url, { range: `bytes=${list.join(',')}` });
      if (reply.status === 416) return;
      const isMultipart = reply.headers['content-type']?.startsWith('multipart/') === true;
      if (!isMultipart) return void t.true(expected(reply)?.equals(reply.body), list.join(','));
      for (const { range, bytes } of splitParts(reply)) {
        const part = { ...reply, headers: { 'content-range': range } };
        t.true(expected(part)?.equals(bytes), list.join(','));
      }
    }),
    { numRuns: 60 },
  );
});

for (const name of [
  'plain.txt',
  'a "quoted"; name=x.txt',
  'line\nbreak\r.txt',
  'Übergröße – 日本.txt',
  "it's 100% \\ ok,*.txt",
  '😀.txt',
  'n'.repeat(255),
]) {
  test(`the name ${JSON.stringify(name).slice(0, 40)} arrives`, async (t) => {
    const { api, diskId } = t.context;
    const encoded = Buffer.from(name).toString('base64');
    const make = `import base64;open(base64.b64decode("${encoded}"),"w").write("x")`;
    await exec(api, diskId, `mkdir -p names; cd names; python3 -c '${make}'`);
    const { headers, body } = await download(await share(api, diskId, `names/${name}`));
    t.is(body.toString(), 'x');
    const { type, parameters } = parse(headers['content-disposition'] ?? '');
    t.is(type, 'attachment');
    t.is(parameters['filename'], name);
  });
}

test('curl downloads, resumes, takes parts and asks for what is new', async (t) => {
  await using place = await temporaryDirectory();
  const { url } = t.context;
  const file = (name: string): string => join(place.path, name);
  t.is((await curl(['-OJ', url], place.path)).code, 0);
  t.true((await readFile(file('data.bin'))).equals(content));
  await writeFile(file('part'), content.subarray(0, 123_456));
  t.is((await curl(['-C', '-', '-o', 'part', url], place.path)).code, 0);
  t.true((await readFile(file('part'))).equals(content));
  await curl(['-r', '10-19', '-o', 'ten', url], place.path);
  t.true((await readFile(file('ten'))).equals(content.subarray(10, 20)));
  const status = ['-o', 'none', '-w', '%{http_code}'];
  t.is((await curl([...status, '-z', modified, url], place.path)).stdout, '304');
  await t.throwsAsync(stat(file('none')), { code: 'ENOENT' });
  const head = await curl(['-I', url], place.path);
  t.regex(head.stdout, new RegExp(`^HTTP/1.1 200 OK\r\n.*content-length: ${SIZE}\r\n`, 'isu'));
});
