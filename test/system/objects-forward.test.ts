/*
 * Objects of a disk that another host handles, and transfers during which a part of the system
 * dies.
 */
import assert from 'node:assert';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import type { ClientRequest } from 'node:http';
import { readdir } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { GetObjectCommand, S3Client } from '@aws-sdk/client-s3';
import { Upload } from '@aws-sdk/lib-storage';
import anyTest, { type TestFn } from 'ava';
import { isStagedName } from '../../agent/edge/s3/store/upload-names.ts';
import { layoutOf } from '../../agent/disks/disk-layout.ts';
import { PartRequests } from '../../shared/links/part-requests.ts';
import type { ApiClient } from '../helpers/api.ts';
import { exec } from '../helpers/disks.ts';
import { diskMount, hostIdOf, usersOfDisk } from '../helpers/host.ts';
import { ALLOWED, bytesOf, FORBIDDEN, treacherousTexts } from '../helpers/header-bytes.ts';
import { ObjectClient } from '../helpers/objects.ts';
import { postForm } from '../helpers/post-form.ts';
import { presign } from '../helpers/presign.ts';
import { type RawReply, request, sendRaw } from '../helpers/raw-http.ts';
import { answerTo, beginRequest, isWhole, outcomeOf } from '../helpers/raw-objects.ts';
import { Stack, type StackNode } from '../helpers/stack.ts';
import { type DiskUser, newDiskUser } from '../helpers/tools.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  other: StackNode;
  user: DiskUser;
  /** The entry points of requests: the host that has the disk, another host, and control. */
  ways: Record<Way, string>;
}

const test = anyTest as TestFn<Context>;
const WAYS = ['handler', 'other', 'control'] as const;
type Way = (typeof WAYS)[number];

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const user = await newDiskUser(stack, api);
  // The first host to be asked for a disk attaches it.
  await new ObjectClient(user.s3Url, api.key).put(user.disk, 'first', 'x');
  await exec(api, user.disk, 'truncate -s 200M large');
  const other = await stack.addAgent();
  await other.start();
  const otherUrl = other.environment['AGENT_PUBLIC_URL'] ?? '';
  const ways = { handler: user.s3Url, other: otherUrl, control: stack.baseUrl };
  Object.assign(t.context, { api, user, other, ways });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const digest = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

/** Incomplete files on the disk. */
async function staged({ stack, user }: Context): Promise<string[]> {
  return (await readdir(layoutOf(diskMount(stack, user.disk)).uploads)).filter(isStagedName);
}

const untilNothingIsStaged = (context: Context): Promise<true> =>
  waitFor('incomplete files to be removed', async () => (await staged(context)).length === 0);

/** Begins a put of 20 MiB and waits until a part has reached the disk's host. */
async function halfPut(context: Context, way: Way, key: string): Promise<ClientRequest> {
  const { api, user, ways } = context;
  const headers = { authorization: api.key, 'content-length': String(20 * MiB) };
  const sent = beginRequest(`${ways[way]}/${user.disk}/${key}`, { method: 'PUT', headers });
  sent.write(Buffer.alloc(4 * MiB));
  await waitFor('the body to arrive', async () => (await staged(context)).length > 0);
  return sent;
}

/** Begins a get of a large object and waits until its answer has begun. */
async function halfGet({ api, user, ways }: Context, way: Way) {
  const headers = { authorization: api.key };
  const sent = beginRequest(`${ways[way]}/${user.disk}/large`, { headers });
  sent.end();
  const answer = await answerTo(sent);
  const [chunk] = (await once(answer, 'data')) as [Buffer];
  answer.pause();
  answer.unshift(chunk);
  return answer;
}

/** The status of a get from this address. */
async function statusFrom(localAddress: string, url: string, headers = {}): Promise<number> {
  const sent = beginRequest(url, { localAddress, headers });
  sent.end();
  return (await outcomeOf(sent)).status;
}

const isThere = async ({ api, user, ways }: Context, key: string): Promise<boolean> =>
  (await new ObjectClient(ways.handler, api.key).call('HEAD', `/${user.disk}/${key}`)).status ===
  200;

for (const way of WAYS) {
  test.serial(`20 MiB are put and read back through ${way}`, async (t) => {
    const { api, user, ways } = t.context;
    const client = new ObjectClient(ways[way], api.key);
    const body = randomBytes(20 * MiB);
    const key = `way/${way} ü`;
    t.is((await client.put(user.disk, key, body)).status, 200);
    const get = await client.get(user.disk, key);
    t.is(digest(get.body), digest(body));
    t.is((await client.get(user.disk, key, { range: 'bytes=-1' })).body.length, 1);
    const missing = await client.get(user.disk, 'way/missing');
    t.deepEqual([missing.status, missing.code], [404, 'NoSuchKey']);
  });

  test.serial(
    `a client that expects 100-continue gets it, or a refusal without sending its body: ${way}`,
    async (t) => {
      const { api, user, ways } = t.context;
      const url = `${ways[way]}/${user.disk}/expected`;
      const expecting = { 'content-length': '5', expect: '100-continue' };
      const put = (authorization: string): ClientRequest =>
        beginRequest(url, { method: 'PUT', headers: { ...expecting, authorization } });
      const welcome = put(api.key);
      await once(welcome, 'continue');
      welcome.end('hello');
      t.is((await outcomeOf(welcome)).status, 200);
      const refused = put('key-wrong');
      refused.once('continue', () => t.fail('told to go on'));
      t.deepEqual(await outcomeOf(refused), { status: 403, code: 'AccessDenied' });
      refused.destroy();
    },
  );

  test.serial(`a refusal arrives while the body is still being sent: ${way}`, async (t) => {
    const { api, user, ways } = t.context;
    for (let round = 0; round < 5; round += 1) {
      const headers = { authorization: api.key, 'content-length': String(64 * MiB) };
      const url = `${ways[way]}/${user.disk}/${'k'.repeat(1025)}`;
      const sent = beginRequest(url, { method: 'PUT', headers });
      Readable.from(Array.from({ length: 64 }, () => Buffer.alloc(MiB))).pipe(sent);
      t.deepEqual(await outcomeOf(sent), { status: 400, code: 'KeyTooLongError' });
      sent.destroy();
    }
  });

  test.serial(`a disk that runs full during a put answers QuotaExceeded: ${way}`, async (t) => {
    const { api, user, ways } = t.context;
    const headers = { authorization: api.key, 'content-length': String(300 * MiB) };
    const sent = beginRequest(`${ways[way]}/${user.disk}/full`, { method: 'PUT', headers });
    Readable.from(Array.from({ length: 300 }, () => Buffer.alloc(MiB, 'x'))).pipe(sent);
    t.deepEqual(await outcomeOf(sent), { status: 400, code: 'QuotaExceeded' });
    sent.destroy();
    await untilNothingIsStaged(t.context);
  });

  test.serial(`a put whose client hangs up leaves nothing: ${way}`, async (t) => {
    const sent = await halfPut(t.context, way, 'hung-up');
    sent.destroy();
    await untilNothingIsStaged(t.context);
    t.false(await isThere(t.context, 'hung-up'));
  });

  test.serial(`a get whose client hangs up is ended: ${way}`, async (t) => {
    const { stack, user } = t.context;
    const answer = await halfGet(t.context, way);
    const mount = diskMount(stack, user.disk);
    t.not((await usersOfDisk(mount)).length, 0);
    answer.destroy();
    await waitFor('the file to be closed', async () => (await usersOfDisk(mount)).length === 0);
  });
}

/** Headers that are stored with an object, and those that a query replaces. */
const KEPT = ['cache-control', 'content-disposition', 'content-language', 'expires'];
const STORED = [...KEPT, 'content-encoding', 'x-amz-meta-own'];
const REPLACED = [...KEPT, 'content-encoding', 'content-type'];

/** Sends a request whose header values have one character a byte, and reads the only answer. */
async function callRaw(
  { api, user, ways }: Context,
  way: Way,
  [method, target]: readonly [method: string, target: string],
  headers: Readonly<Record<string, string>> = {},
): Promise<RawReply> {
  const own = { connection: 'close', authorization: api.key };
  const head = request(method, `/${user.disk}/${target}`, { ...own, ...headers });
  const replies = await sendRaw(ways[way], Buffer.from(head, 'latin1'));
  const [reply] = replies;
  assert(reply !== undefined && replies.length === 1, `${replies.length} answers`);
  return reply;
}

const withValues = (names: readonly string[], value: string): Record<string, string> =>
  Object.fromEntries(names.map((name) => [name, value]));

const overridesOf = (names: readonly string[], text: string): string =>
  names.map((name) => `response-${name}=${encodeURIComponent(text)}`).join('&');

/** Asserts that the object has these bytes in its headers, however it is read. */
async function assertReturned(context: Context, value: string): Promise<void> {
  for (const way of WAYS) {
    const reply = await callRaw(context, way, ['HEAD', 'bytes']);
    assert.equal(reply.status, 200);
    for (const name of STORED) assert.equal(reply.headers.get(name), value, `${way} ${name}`);
    const length = Number(reply.headers.get('content-length'));
    assert.equal((await callRaw(context, way, ['GET', 'bytes'])).body.length, length);
  }
}

/** Within the limits of metadata, in all headers together. */
const TEXTS = ['报告 é.txt', ...treacherousTexts(130)];

test.serial('stored header values come back byte for byte', async (t) => {
  const { user } = t.context;
  const length = { 'content-length': '0' };
  for (const value of [ALLOWED.replace(',', ''), ...TEXTS.map(bytesOf)]) {
    const headers = { ...length, ...withValues(STORED, value) };
    t.is((await callRaw(t.context, 'control', ['PUT', 'bytes'], headers)).status, 200);
    await assertReturned(t.context, value);
  }
  for (const text of TEXTS.slice(0, 3)) {
    const fields = { key: 'bytes', ...withValues(STORED, `\t ${text} `) };
    const conditions = Object.entries(fields).map(([name, value]) => ({ [name]: value }));
    t.is((await postForm(user, { fields, conditions })).status, 204);
    await assertReturned(t.context, bytesOf(text));
    const rest = withValues([...KEPT, 'content-encoding'], bytesOf(text));
    const target = `bytes?x-amz-meta-own=${encodeURIComponent(`${text} `)}`;
    const put = await callRaw(t.context, 'other', ['PUT', target], { ...length, ...rest });
    t.is(put.status, 200);
    await assertReturned(t.context, bytesOf(text));
  }
});

test.serial('header values of a query leave as its UTF-8', async (t) => {
  for (const way of WAYS) {
    for (const text of ['\u0080ÿ', ...TEXTS]) {
      const target = `first?${overridesOf(REPLACED, ` ${text}`)}`;
      const reply = await callRaw(t.context, way, ['GET', target]);
      t.is(reply.text, 'x');
      for (const name of REPLACED) t.is(reply.headers.get(name), bytesOf(text), name);
      const range = { range: 'bytes=0-1,3-4' };
      const { status, headers, body } = await callRaw(
        t.context,
        way,
        ['GET', `large?${overridesOf(['content-type'], text)}`],
        range,
      );
      t.is(status, 206);
      t.is(body.length, Number(headers.get('content-length')));
      t.true(body.toString('latin1').includes(`\r\nContent-Type: ${bytesOf(text)}\r\n`));
    }
  }
});

test.serial('values that no header can have are refused', async (t) => {
  const { user, ways } = t.context;
  for (const way of WAYS) {
    for (const byte of FORBIDDEN) {
      for (const name of REPLACED) {
        const { status, text } = await callRaw(t.context, way, [
          'GET',
          `first?${overridesOf([name], `a${byte}b`)}`,
        ]);
        t.is(status, 400, name);
        t.regex(text, /<Code>InvalidArgument</u);
      }
      const hoisted = `refused?x-amz-meta-own=${encodeURIComponent(`a${byte}b`)}`;
      const length = { 'content-length': '0' };
      t.is((await callRaw(t.context, way, ['PUT', hoisted], length)).status, 400);
      if (byte === '\r' || byte === '\n') continue; // Raw, they end the header's line.
      for (const name of [...STORED, 'content-type']) {
        const headers = { ...length, [name]: `a${byte}b` };
        const { status } = await callRaw(t.context, way, ['PUT', 'refused'], headers);
        t.is(status, 400, name);
      }
    }
    for (const byte of ['\u0001', '\u007f']) {
      const fields = { key: 'refused', 'content-disposition': `a${byte}b` };
      const conditions = Object.entries(fields).map(([name, value]) => ({ [name]: value }));
      const form = await postForm(user, { fields, conditions, s3Url: ways[way] });
      t.deepEqual([form.status, form.code], [400, 'InvalidArgument']);
    }
  }
  t.false(await isThere(t.context, 'refused'));
});

test.serial('signatures stay valid when a request is forwarded', async (t) => {
  const { user, ways } = t.context;
  const s3 = new S3Client({
    endpoint: ways.other,
    region: 'us-east-1',
    forcePathStyle: true,
    credentials: { accessKeyId: user.identifier, secretAccessKey: user.token },
  });
  const bytes = randomBytes(11 * MiB);
  const target = { Bucket: user.disk, Key: 'signed/a b+ü' };
  await new Upload({ client: s3, params: { ...target, Body: Readable.from([bytes]) } }).done();
  const get = await s3.send(new GetObjectCommand(target));
  t.is(digest(Buffer.from((await get.Body?.transformToByteArray()) ?? [])), digest(bytes));
  s3.destroy();
});

test.serial(
  "the client's own address counts, wherever it comes in, and cannot be forged",
  async (t) => {
    const { stack, api, ways, other } = t.context;
    const user = await newDiskUser(stack, api, { allowedIps: ['127.0.0.2'] });
    await new ObjectClient(ways.handler, api.key).put(user.disk, 'file', 'content');
    const secret = stack.environment['CLUSTER_SECRET'] ?? '';
    const baseUrl = `http://127.0.0.1:${other.environment['AGENT_ADMIN_PORT']}`;
    const hostId = await hostIdOf(other.environment);
    const url = await presign(user, 'GET', 'file', baseUrl);
    /** Sends the request as a part of a cluster with this secret would. */
    const forward = async (key: string, to = baseUrl): Promise<number> => {
      const requests = new PartRequests({ clusterSecrets: [key] }, 0);
      const { host, pathname, search } = new URL(url);
      const sent = requests.begin({
        ...{ purpose: 'object-forward', hostId, baseUrl: to, method: 'GET', framing: 'none' },
        ...{ target: `${pathname}${search}`, rawHeaders: ['Host', host] },
        claims: { address: '127.0.0.2', hopsLeft: '1' },
      });
      const { status } = await outcomeOf(sent.end());
      requests.close();
      return status;
    };
    for (const way of WAYS) {
      const given = await presign(user, 'GET', 'file', ways[way]);
      t.is(await statusFrom('127.0.0.2', given), 200, way);
      t.is(await statusFrom('127.0.0.3', given), 403, way);
      // On a public port even a header that the cluster signed has no effect.
      t.is(await forward(secret, ways[way]), 403, way);
      t.is(await statusFrom('127.0.0.2', given, { 'x-berth-proof': 'x' }), 200, way);
    }
    t.is(await statusFrom('127.0.0.2', url), 403);
    t.is(await forward('another secret'), 403);
    t.is(await forward(secret), 200);
  },
);

test.serial(
  'when the forwarding host dies, a get breaks off and nothing of a put is kept',
  async (t) => {
    const { stack, other } = t.context;
    for (const [way, daemon, restart] of [
      ['other', other.daemon, () => other.start()],
      ['control', stack.control, () => stack.startControl()],
    ] as const) {
      const get = await halfGet(t.context, way);
      const sent = await halfPut(t.context, way, `between-${way}`);
      const answer = t.throwsAsync(answerTo(sent));
      await daemon.stop('SIGKILL');
      await answer;
      t.false(await isWhole(get));
      await untilNothingIsStaged(t.context);
      t.false(await isThere(t.context, `between-${way}`));
      await restart();
    }
  },
);

test.serial(
  'when the host of the disk dies, a get breaks off and a put leaves nothing',
  async (t) => {
    const { stack, api, user, ways } = t.context;
    await waitFor('a host at control', async () => {
      const reply = await new ObjectClient(ways.control, api.key).get(user.disk, 'first');
      return reply.status === 200;
    });
    const gets = await Promise.all(WAYS.map((way) => halfGet(t.context, way)));
    const puts = await Promise.all(WAYS.map((way) => halfPut(t.context, way, `died-${way}`)));
    const outcomes = puts.map((sent) => outcomeOf(sent).catch(() => 'broken'));
    await stack.agent.stop('SIGKILL');
    t.deepEqual(await Promise.all(gets.map(isWhole)), [false, false, false]);
    for (const outcome of await Promise.all(outcomes)) {
      t.true(outcome === 'broken' || (typeof outcome === 'object' && outcome.status === 503));
    }
    await stack.startAgent();
    const client = new ObjectClient(ways.handler, api.key);
    t.is((await client.get(user.disk, 'first')).text, 'x');
    for (const way of WAYS) t.false(await isThere(t.context, `died-${way}`), way);
    t.deepEqual(await staged(t.context), []);
    t.is((await client.put(user.disk, 'died-handler', 'again')).status, 200);
  },
);

test.serial('a host that is told to stop lets transfers finish', async (t) => {
  const { stack } = t.context;
  const get = await halfGet(t.context, 'handler');
  const put = await halfPut(t.context, 'handler', 'drained');
  const outcome = outcomeOf(put);
  const exitCode = stack.agent.stop();
  await waitFor('the host to drain', async () => {
    const url = `http://127.0.0.1:${stack.environment['AGENT_ADMIN_PORT']}/readyz`;
    return (await fetch(url)).status === 503;
  });
  assert(get.readable);
  put.end(Buffer.alloc(16 * MiB));
  t.is((await outcome).status, 200);
  t.true(await isWhole(get));
  t.is(await exitCode, 0);
  await stack.startAgent();
  t.true(await isThere(t.context, 'drained'));
});
