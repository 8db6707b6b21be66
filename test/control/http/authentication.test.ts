import anyTest, { type TestFn } from 'ava';
import { ApiClient } from '../../helpers/api.ts';
import { request, sendRaw } from '../../helpers/raw-http.ts';
import { Stack } from '../../helpers/stack.ts';

const test = anyTest as TestFn<{ stack: Stack; key: string; anyone: ApiClient }>;

test.before(async (t) => {
  const stack = await Stack.start();
  t.context.stack = stack;
  t.context.key = (await stack.newClient()).key;
  t.context.anyone = new ApiClient(stack.baseUrl, '');
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** AVA makes one space of many. */
const show = (header = 'no header'): string =>
  header === '' ? 'empty' : JSON.stringify(header.replaceAll(' ', '␠')).slice(0, 40);

/** `KEY` stands for a valid key. */
const accepted = test.macro({
  async exec(t, header: string) {
    const { stack, key } = t.context;
    const headers = { authorization: header.replace('KEY', key), connection: 'close' };
    const [reply] = await sendRaw(stack.baseUrl, request('GET', '/api/disks', headers));
    t.is(reply?.status, 200);
  },
  title: (_given, header: string) => `accepted: ${show(header)}`,
});

test(accepted, 'Bearer KEY');
test(accepted, 'KEY');
test(accepted, 'bearer KEY');
test(accepted, 'BEARER KEY');
test(accepted, 'Bearer   KEY');
test(accepted, 'Bearer\tKEY');
test(accepted, '  KEY  ');
test(accepted, '  Bearer KEY \t');

const refused = test.macro({
  async exec(t, header: string | undefined) {
    const { stack, key } = t.context;
    const authorization = header?.replace('SECRET', key.slice('key-'.length)).replace('KEY', key);
    const headers = {
      connection: 'close',
      ...(authorization === undefined ? {} : { authorization }),
    };
    const [reply] = await sendRaw(stack.baseUrl, request('GET', '/api/disks', headers));
    t.is(reply?.status, 401);
    t.is(reply?.headers.get('content-type'), 'application/json; charset=utf-8');
    const body = JSON.parse(reply?.text ?? '') as { success: boolean; code: string; error: string };
    t.like(body, { success: false, code: 'unauthorized' });
    t.not(body.error, '');
    t.false(body.error.includes(key));
  },
  title: (_given, header?: string) => `refused with 401: ${show(header)}`,
});

test(refused, undefined);
test(refused, '');
test(refused, '   ');
test(refused, 'Bearer');
test(refused, 'Bearer ');
test(refused, 'SECRET');
test(refused, 'Bearer SECRET');
test(refused, 'key-SECRETx');
test(refused, 'key-');
test(refused, 'KEY-SECRET');
test(refused, 'key-KEY');
test(refused, 'Bearer Bearer KEY');
test(refused, 'BearerKEY');
test(refused, 'Basic KEY');
test(refused, 'Token KEY');
test(refused, 'KEY, KEY');
test(refused, `Bearer key-${'a'.repeat(8000)}`);
test(refused, '\u00FF\u0080');
test(refused, '"KEY"');

test('a key in the query or in another header is ignored', async (t) => {
  const { anyone, key } = t.context;
  t.is((await anyone.call('GET', `/api/disks?authorization=${key}`)).status, 401);
  const headers = { 'x-authorization': key, cookie: `authorization=${key}` };
  t.is((await anyone.call('GET', '/api/disks', undefined, headers)).status, 401);
});

const plainText: [method: string, path: string][] = [
  ['POST', '/api/images'],
  ['GET', `/api/images/${'0'.repeat(64)}`],
  ['POST', '/api/sandboxes'],
];

for (const [method, path] of plainText) {
  test(`the 401 of ${method} ${path.slice(0, 20)} is plain text`, async (t) => {
    const { anyone, stack, key } = t.context;
    const none = await anyone.call<string>(method, path);
    t.is(none.status, 401);
    t.regex(none.headers.get('content-type') ?? '', /^text\/plain/u);
    t.is(none.body, 'Must provide an Authorization header');
    for (const authorization of ['key-wrong', 'Bearer key-wrong', 'dt-disk-token', 'nonsense']) {
      const wrong = await anyone.call<string>(method, path, undefined, { authorization });
      t.is(wrong.status, 401);
      t.regex(wrong.headers.get('content-type') ?? '', /^text\/plain/u);
      t.is(wrong.body, 'Unauthorized');
    }
    const known = await new ApiClient(stack.baseUrl, key).call(method, path);
    t.true([400, 503].includes(known.status), 'other errors are JSON');
    t.like(known.body, { success: false });
  });
}

test('health checks and the API description need no key', async (t) => {
  for (const path of ['/healthz', '/readyz', '/openapi.json']) {
    t.is((await t.context.anyone.call('GET', path)).status, 200, path);
  }
});
