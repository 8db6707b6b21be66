/*
 * Random requests to the object API: whatever a caller sends is answered, and never with a fault of
 * ours; the host stays well, and nothing beside the disk changes.
 */
import assert from 'node:assert';
import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import * as fc from '../helpers/fast-check.ts';
import type { ApiClient } from '../helpers/api.ts';
import { diskMount } from '../helpers/host.ts';
import { ObjectClient } from '../helpers/objects.ts';
import { body, comparedRequest, header, method, path, query } from '../helpers/object-requests.ts';
import { presign } from '../helpers/presign.ts';
import { type RawAnswer, readAnswers, sendRaw } from '../helpers/raw-http.ts';
import { Stack } from '../helpers/stack.ts';
import { type DiskUser, newDiskUser } from '../helpers/tools.ts';
import { isFull } from '../helpers/full.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  user: DiskUser;
  /** A directory beside the disk's mount, whose contents must not change. */
  canary: string;
}

const test = anyTest as TestFn<Context>;
const RUNS = isFull ? 6000 : 400;

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const user = await newDiskUser(stack, api);
  const client = new ObjectClient(user.s3Url, api.key);
  for (const key of ['a', 'dir/b']) await client.put(user.disk, key, 'content');
  const canary = join(dirname(diskMount(stack, user.disk)), 'canary');
  await mkdir(join(canary, 'contents'), { recursive: true });
  for (const name of ['a', 'contents/a']) await writeFile(join(canary, name), 'untouched');
  Object.assign(t.context, { api, user, canary });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** A hash over everything below a directory. */
async function fingerprint(directory: string): Promise<string> {
  const hash = createHash('sha256');
  const names = (await readdir(directory, { recursive: true })).sort();
  for (const name of names) {
    const found = await stat(join(directory, name));
    hash.update(`${name} ${found.mode} ${found.mtimeMs}\n`);
    if (found.isFile()) hash.update(await readFile(join(directory, name)));
  }
  return hash.digest('hex');
}

interface Request {
  readonly method: string;
  readonly target: string;
  readonly headers: readonly string[];
  readonly body: string;
}

/** Sends one request unchanged and asserts that its answer is not a server error. */
async function mustBeAnswered(baseUrl: string, request: Request, host = 'test'): Promise<number> {
  const length = Buffer.byteLength(request.body, 'latin1');
  const lines = [
    `${request.method} ${request.target} HTTP/1.1`,
    ...[`host: ${host}`, 'connection: close', `content-length: ${length}`, ...request.headers],
  ];
  const bytes = Buffer.from(`${lines.join('\r\n')}\r\n\r\n${request.body}`, 'latin1');
  const [reply] = await sendRaw(baseUrl, bytes);
  assert(reply !== undefined, 'no answer');
  assert(reply.status < 500 || reply.status === 501, `${reply.status} ${reply.text}`);
  return reply.status;
}

/** Asserts that the host works, the canary is unchanged, and the log has no failure. */
async function checkHost({ stack, api, user, canary }: Context, before: string): Promise<void> {
  assert.equal(await fingerprint(canary), before);
  const client = new ObjectClient(user.s3Url, api.key);
  assert.equal((await client.put(user.disk, 'after', 'x')).status, 200);
  assert.equal((await client.get(user.disk, 'after')).text, 'x');
  const log = await stack.agent.readLog();
  assert.doesNotMatch(log, /"code":"InternalError"|Warning/u);
}

test('methods, keys, queries, headers and bodies', async (t) => {
  const { api, user, canary } = t.context;
  const before = await fingerprint(canary);
  const key = path.map((rest) => `/${user.disk}/${rest}`);
  const anywhere = path.map((rest) => `/${rest}`);
  const target = fc
    .tuple(fc.oneof({ weight: 6, arbitrary: key }, anywhere), query)
    .map(([where, what]) => (what === '' ? where : `${where}?${what}`));
  const headers = fc
    .array(header, { maxLength: 3 })
    .map((all) => [...new Set(all), `authorization: ${api.key}`]);
  const property = fc.asyncProperty(
    fc.record({ method, target, headers, body }),
    async (request) => {
      await mustBeAnswered(user.s3Url, request);
    },
  );
  await fc.assert(property, { numRuns: RUNS });
  await checkHost(t.context, before);
  t.pass();
});

test('a signature with one changed character is refused', async (t) => {
  const { user, canary } = t.context;
  const before = await fingerprint(canary);
  const url = new URL(await presign(user, 'GET', 'a'));
  const target = `${url.pathname}${url.search}`;
  const send = (changed: string): Promise<number> => {
    const request = { method: 'GET', target: changed, headers: [], body: '' };
    return mustBeAnswered(user.s3Url, request, url.host);
  };
  t.is(await send(target), 200);
  const character = fc.constantFrom(...'0123456789abcdefXYZ%&=+-/.~'.split(''));
  const position = fc.nat({ max: target.length - 2 }).map((at) => at + 1);
  const property = fc.asyncProperty(position, character, async (at, other) => {
    fc.pre(target[at]?.toLowerCase() !== other.toLowerCase());
    const status = await send(`${target.slice(0, at)}${other}${target.slice(at + 1)}`);
    assert(status >= 400 && status < 500, `${status} at ${at} with ${other}`);
  });
  await fc.assert(property, { numRuns: RUNS });
  await checkHost(t.context, before);
});

test('chunks of a body', async (t) => {
  const { api, user, canary } = t.context;
  const before = await fingerprint(canary);
  const piece = fc.constantFrom(
    ...[
      '5;chunk-signature=0\r\n',
      '5\r\n',
      'hello',
      '\r\n',
      '0\r\n',
      '0;x=y\r\n',
      '\r\n\r\n',
      '-1\r\n',
    ],
    ...[
      'ffffffffffffffff\r\n',
      'zz\r\n',
      '5;',
      'x-amz-checksum-crc32:AAAAAA==\r\n',
      '\n',
      '\0',
      ':',
    ],
  );
  const constant = fc.constantFrom(
    ...['STREAMING-UNSIGNED-PAYLOAD-TRAILER', 'STREAMING-AWS4-HMAC-SHA256-PAYLOAD'],
    ...['STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER', 'UNSIGNED-PAYLOAD'],
  );
  const decoded = fc.constantFrom('5', '0', '-1', '99999999999999999999', '');
  const pieces = fc.array(piece, { maxLength: 8 }).map((all) => all.join(''));
  const url = new URL(await presign(user, 'PUT', 'chunked'));
  const target = `${url.pathname}${url.search}`;
  const property = fc.asyncProperty(pieces, constant, decoded, async (text, payload, length) => {
    const headers = [
      ...[`x-amz-content-sha256: ${payload}`, `x-amz-decoded-content-length: ${length}`],
      ...['content-encoding: aws-chunked', 'x-amz-trailer: x-amz-checksum-crc32'],
    ];
    const request = { method: 'PUT', target, headers, body: text };
    await mustBeAnswered(user.s3Url, request, url.host);
    const key = { ...request, target: `/${user.disk}/chunked` };
    const withKey = { ...key, headers: [...headers, `authorization: ${api.key}`] };
    await mustBeAnswered(user.s3Url, withKey);
  });
  await fc.assert(property, { numRuns: RUNS / 2 });
  await checkHost(t.context, before);
  t.pass();
});

/** Headers that name the time, the request or the connection, or that control adds. */
const PASSING = new Set([
  ...['date', 'x-amz-request-id', 'connection', 'keep-alive', 'transfer-encoding'],
]);

/** The answers as they must be alike, whichever way the request went. */
const alike = (answers: readonly RawAnswer[], disk: string): unknown =>
  answers.map(({ status, headers, body: bytes }) => ({
    status,
    headers: headers
      .filter(([name]) => !PASSING.has(name.toLowerCase()))
      .map(([name, value]) => `${name.toLowerCase()}: ${settled(value, disk)}`)
      .toSorted(),
    body: settled(bytes.toString('latin1'), disk),
  }));

/** A text without what differs between two disks and two moments. */
const settled = (text: string, disk: string): string =>
  text
    .replaceAll(disk, 'DISK')
    .replaceAll(/<(RequestId|UploadId|LastModified|Name|CreationDate)>[^<]*<\/\1>/gu, '<$1/>')
    .replaceAll(/\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT/gu, 'TIME')
    .replaceAll(/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/gu, 'UUID');

test('control answers as the agent does, byte for byte', async (t) => {
  const { stack, api, user } = t.context;
  const ways = await Promise.all(
    [user.s3Url, stack.baseUrl].map(async (baseUrl) => {
      const { disk } = await newDiskUser(stack, api);
      const client = new ObjectClient(user.s3Url, api.key);
      for (const key of ['a', 'dir/b']) await client.put(disk, key, 'content');
      return { baseUrl, disk };
    }),
  );
  const property = fc.asyncProperty(comparedRequest, async (request) => {
    const [direct, through] = await Promise.all(
      ways.map(async ({ baseUrl, disk }) => {
        const bytes = request.replaceAll('DISK', disk).replaceAll('KEY', api.key);
        return alike(await readAnswers(baseUrl, Buffer.from(bytes, 'latin1')), disk);
      }),
    );
    assert.deepEqual(through, direct);
  });
  await fc.assert(property, { numRuns: RUNS * 2 });
  t.true(stack.agent.isRunning && stack.control.isRunning);
});
