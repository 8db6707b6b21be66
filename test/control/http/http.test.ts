import { gzipSync } from 'node:zlib';
import { HTTP_LIMITS } from '../../../control/http/limits.ts';
import { KiB } from '../../../shared/units.ts';
import type { ApiBody, ApiClient } from '../../helpers/api.ts';
import { createDisk, newName } from '../../helpers/disks.ts';
import { type RawReply, request, sendRaw } from '../../helpers/raw-http.ts';
import type { Stack } from '../../helpers/stack.ts';
import { stackTest } from '../../helpers/stack-test.ts';

const test = stackTest();

const parse = (reply: RawReply | undefined): ApiBody => JSON.parse(reply?.text ?? '') as ApiBody;

/** Sends a raw request with a valid key. */
async function send(
  { stack, api }: { stack: Stack; api: ApiClient },
  method: string,
  path: string,
  headers: Record<string, string> = {},
  body = '',
): Promise<RawReply> {
  const all = { authorization: api.key, connection: 'close', ...headers };
  const [reply] = await sendRaw(stack.baseUrl, request(method, path, all, body));
  if (reply === undefined) throw new Error('no answer');
  return reply;
}

for (const path of ['/', '/api', '/api/disk', '/api/disks/a/b/c', '/api/v1/disks', '/metrics']) {
  test(`an unknown path is not found: ${path}`, async (t) => {
    for (const method of ['GET', 'POST', 'PATCH', 'PROPFIND']) {
      const reply = await send(t.context, method, path);
      t.is(reply.status, 404, method);
      t.like(parse(reply), { success: false, code: 'not_found' });
    }
  });
}

for (const path of ['/%', '/%E0%A4%A', '/a%00', '/api//disks', '//api/disks', '/..%2F..', '*']) {
  test(`an odd path is not found: ${path}`, async (t) => {
    const reply = await send(t.context, 'GET', path);
    t.is(reply.status, 404);
    t.is(parse(reply).code, 'not_found');
  });
}

for (const path of ['/API/Disks', '/api/disks/', '/api/DISKS?limit=1']) {
  test(`a path is read without regard to case and a slash at its end: ${path}`, async (t) => {
    t.is((await send(t.context, 'GET', path)).status, 200);
  });
}

const wrongMethod = test.macro({
  async exec(t, method: string, path: string, allow: string[]) {
    const reply = await send(t.context, method, path);
    t.is(reply.status, 405);
    t.like(parse(reply), { success: false, code: 'method_not_allowed' });
    t.deepEqual((reply.headers.get('allow') ?? '').split(', ').toSorted(), allow);
  },
  title: (_given, method: string, path: string) => `${method} ${path} is a wrong method`,
});

test(wrongMethod, 'DELETE', '/api/disks', ['GET', 'HEAD', 'POST']);
test(wrongMethod, 'PATCH', '/api/disks/x', ['DELETE', 'GET', 'HEAD']);
test(wrongMethod, 'GET', '/api/disks/x/exec', ['POST']);
test(wrongMethod, 'POST', '/api/disks/x/allowed-ips', ['GET', 'HEAD', 'PUT']);
test(wrongMethod, 'PROPFIND', '/api/tokens', ['GET', 'HEAD', 'POST']);
test(wrongMethod, 'POST', '/openapi.json', ['GET', 'HEAD']);
test(wrongMethod, 'PUT', '/console/session', ['DELETE', 'GET', 'HEAD', 'POST']);
test(wrongMethod, 'PUT', '/API/Disks/x/', ['DELETE', 'GET', 'HEAD']);

const badBody = test.macro({
  async exec(t, body: string, headers: Record<string, string> = {}) {
    const all = { 'content-type': 'application/json', ...headers };
    const reply = await send(t.context, 'POST', '/api/disks', all, body);
    t.is(reply.status, 400);
    t.like(parse(reply), { success: false, code: 'bad_request' });
    t.not(parse(reply).error, '');
  },
  title: (given) => `a bad body is refused: ${given}`,
});

test('nothing at all', badBody, '');
test('blanks', badBody, '   ');
test('cut off', badBody, '{"name":');
test('two values', badBody, '{"name":"a"}{"name":"b"}');
test('a trailing comma', badBody, '{"name":"a",}');
test('a byte order mark in front', badBody, '\uFEFF\uFEFF{"name":"a"}');
test('null', badBody, 'null');
test('a list', badBody, '[{"name":"a"}]');
test('a text', badBody, '"name"');
test('a number', badBody, '7');
test('a form', badBody, 'name=a', { 'content-type': 'application/x-www-form-urlencoded' });
test('a type that is not JSON', badBody, '{"name":"a"}', { 'content-type': 'image/png' });
test('a multipart type', badBody, '{"name":"a"}', {
  'content-type': 'multipart/form-data; boundary=x',
});
test('a type that is no type', badBody, '{"name":"a"}', { 'content-type': ';;,' });
test('no type', badBody, '{"name":"a"}', { 'content-type': '' });
test('an unknown encoding', badBody, '{"name":"a"}', { 'content-encoding': 'foo' });
test('a wrong encoding', badBody, '{"name":"a"}', { 'content-encoding': 'gzip' });
test('deep nesting', badBody, `{"name":${'['.repeat(200_000)}${']'.repeat(200_000)}}`);

for (const type of [
  'application/json',
  'application/json; charset=utf-8',
  'APPLICATION/JSON',
  'application/problem+json',
  'application/x-www-form-urlencoded',
  'text/plain;charset=UTF-8',
]) {
  test(`JSON is read when it is sent as ${type}`, async (t) => {
    const body = JSON.stringify({ name: newName() });
    const reply = await send(t.context, 'POST', '/api/disks', { 'content-type': type }, body);
    t.is(reply.status, 201);
  });
}

test('a body in chunks and a compressed body are read', async (t) => {
  const { api, stack } = t.context;
  const name = newName();
  const body = JSON.stringify({ name });
  const chunk = `${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`;
  const head = request('POST', '/api/disks', {
    authorization: api.key,
    'content-type': 'application/json',
    'transfer-encoding': 'chunked',
    connection: 'close',
  });
  const [reply] = await sendRaw(stack.baseUrl, head + chunk);
  t.is(reply?.status, 201);

  const zipped = gzipSync(body);
  const headers = {
    authorization: api.key,
    'content-type': 'application/json',
    'content-encoding': 'gzip',
    'content-length': String(zipped.length),
    connection: 'close',
  };
  const bytes = Buffer.concat([Buffer.from(request('POST', '/api/disks', headers)), zipped]);
  const [again] = await sendRaw(stack.baseUrl, bytes);
  t.is(again?.status, 200);
});

test('a body that is too large is refused, even if it is small while compressed', async (t) => {
  const { api, stack } = t.context;
  const large = JSON.stringify({ name: 'n', filler: 'x'.repeat(HTTP_LIMITS.requestBodyBytesMax) });
  const reply = await api.call('POST', '/api/disks', large);
  t.is(reply.status, 413);
  t.is(reply.body.code, 'body_too_large');
  const bomb = await fetch(`${stack.baseUrl}/api/disks`, {
    method: 'POST',
    headers: {
      authorization: api.key,
      'content-type': 'application/json',
      'content-encoding': 'gzip',
    },
    body: gzipSync(large),
  });
  t.is(bomb.status, 413);
  await bomb.text();
  const fits = JSON.stringify({ name: newName(), filler: 'x'.repeat(1024) });
  t.is((await api.call('POST', '/api/disks', fits)).status, 201, 'the server goes on');
});

test('without a key a body may only be small and plain', async (t) => {
  const path = '/api/hosts/join';
  const json = { 'content-type': 'application/json', authorization: '' };
  const large = await send(t.context, 'POST', path, json, `{"name":"${'x'.repeat(2 * KiB)}"}`);
  t.deepEqual([large.status, parse(large).code], [413, 'body_too_large']);
  const zipped = await send(t.context, 'POST', path, { ...json, 'content-encoding': 'gzip' }, '{}');
  t.deepEqual([zipped.status, parse(zipped).code], [400, 'bad_request']);
  t.regex(parse(zipped).error ?? '', /Content-Encoding/u);
});

test('a body with a method that takes none is refused', async (t) => {
  const headers = { 'content-type': 'application/json' };
  const reply = await send(t.context, 'GET', '/api/disks', headers, '{"name":');
  t.is(reply.status, 400);
  t.like(parse(reply), {
    success: false,
    code: 'bad_request',
    error: 'GET takes no body; send none',
  });
  const empty = { ...headers, 'content-length': '0' };
  t.is((await send(t.context, 'GET', '/api/disks', empty)).status, 200);
});

test('an endpoint without fields names those of a body, and refuses what is no JSON', async (t) => {
  const path = '/api/sandboxes/00000000-0000-4000-8000-000000000000/stop';
  const json = { 'content-type': 'application/json' };
  const named = await send(t.context, 'POST', path, json, '{"wait":true}');
  t.deepEqual([named.status, named.headers.get('x-ignored-fields')], [404, 'wait']);
  const refused = await send(t.context, 'POST', path, json, '{"wait":');
  t.deepEqual([refused.status, parse(refused).code], [400, 'bad_request']);
});

test('fields named like properties of every object have no effect', async (t) => {
  const { api } = t.context;
  const body = `{"name":"${newName()}","constructor":{"x":1},"toString":"x","length":7}`;
  t.is((await api.call('POST', '/api/disks', body)).status, 201);
  const reply = await api.call('POST', '/api/disks', '{"name":"a","__proto__":{"mounts":[]}}');
  t.is(reply.status, 400);
});

for (const id of ['a', 'Trace-1.2_3', 'x'.repeat(64)]) {
  test(`a valid request id is echoed: ${id}`, async (t) => {
    const reply = await send(t.context, 'GET', '/nowhere', { 'x-request-id': id });
    t.is(reply.headers.get('x-request-id'), id);
  });
}

for (const id of ['', 'x'.repeat(65), 'a b', '<script>', '{"a":1}', 'é', 'a\tb', '../..']) {
  test(`an invalid request id is replaced: ${JSON.stringify(id)}`, async (t) => {
    const reply = await send(t.context, 'GET', '/api/disks', { 'x-request-id': id });
    t.regex(reply.headers.get('x-request-id') ?? '', /^req-[0-9a-f-]{36}$/u);
  });
}

test('requests without an id get different ones', async (t) => {
  const ids = await Promise.all(
    Array.from({ length: 5 }, async () => {
      const reply = await send(t.context, 'GET', '/api/disks');
      return reply.headers.get('x-request-id');
    }),
  );
  t.is(new Set(ids).size, 5);
});

test('HEAD answers as GET does, without the body', async (t) => {
  const { id } = await createDisk(t.context.api);
  for (const path of [`/api/disks/${id}`, '/api/disks/dsk-0000000000000000', '/nowhere']) {
    const get = await send(t.context, 'GET', path);
    const head = await send(t.context, 'HEAD', path);
    t.is(head.status, get.status);
    t.is(head.headers.get('content-type'), get.headers.get('content-type'));
    t.is(head.text, '');
  }
});

test('every answer is JSON with a length', async (t) => {
  for (const path of ['/api/disks', '/api/disks/x', '/nowhere']) {
    const reply = await send(t.context, 'GET', path);
    t.is(reply.headers.get('content-type'), 'application/json; charset=utf-8');
    t.is(Number(reply.headers.get('content-length')), Buffer.byteLength(reply.text));
  }
});

test('requests pipelined on one connection are answered in order', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  const headers = { authorization: api.key };
  const json = { ...headers, 'content-type': 'application/json' };
  const slow = JSON.stringify({ command: 'sleep 0.2; echo slow' });
  const pipeline = [
    request('POST', `/api/disks/${id}/exec`, { ...json, 'x-request-id': 'r0' }, slow),
    ...Array.from({ length: 50 }, (_, index) =>
      request('GET', `/api/disks/${id}`, { ...headers, 'x-request-id': `r${index + 1}` }),
    ),
    request('HEAD', '/api/disks', { ...headers, 'x-request-id': 'r51' }),
    request('POST', '/api/disks', { ...json, 'x-request-id': 'r52' }, '{'),
    request('GET', '/nowhere', { 'x-request-id': 'r53', connection: 'close' }),
  ];
  const replies = await sendRaw(stack.baseUrl, pipeline.join(''));
  t.deepEqual(
    replies.map((reply) => reply.headers.get('x-request-id')),
    Array.from({ length: 54 }, (_, index) => `r${index}`),
  );
  t.deepEqual(
    replies.slice(-4).map(({ status }) => status),
    [200, 200, 400, 404],
  );
  t.regex(replies[0]?.text ?? '', /slow/u);
});

test('a connection stays usable after refused bodies', async (t) => {
  const { api, stack } = t.context;
  const json = { authorization: api.key, 'content-type': 'application/json' };
  const large = `{"name":"${'x'.repeat(HTTP_LIMITS.requestBodyBytesMax)}"}`;
  const replies = await sendRaw(
    stack.baseUrl,
    [
      request('POST', '/api/disks', { 'content-type': 'application/json' }, '{"name":"a"}'),
      request('POST', '/api/disks', json, large),
      request('POST', '/api/disks', { ...json, 'content-encoding': 'foo' }, '{"name":"a"}'),
      request('POST', '/nowhere', json, '{"name":"a"}'),
      request('GET', '/api/disks', { authorization: api.key, connection: 'close' }),
    ].join(''),
  );
  t.deepEqual(
    replies.map(({ status }) => status),
    [401, 413, 400, 404, 200],
  );
});

test('input that is not HTTP is refused and disturbs no other caller', async (t) => {
  const { stack } = t.context;
  for (const bytes of ['hello\r\n\r\n', 'GET / HTTP/9.9\r\n\r\n', '\0\0\0\0\r\n\r\n']) {
    const [reply] = await sendRaw(stack.baseUrl, bytes);
    t.is(reply?.status, 400);
  }
  const [large] = await sendRaw(
    stack.baseUrl,
    request('GET', '/api/disks', { 'x-large': 'x'.repeat(20_000) }),
  );
  t.is(large?.status, 431);
  t.is((await send(t.context, 'GET', '/api/disks')).status, 200);
});
