import anyTest, { type TestFn } from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { isIP, isIPv4 } from 'node:net';
import { routes } from '../../../control/routes.ts';
import { ApiClient } from '../../helpers/api.ts';
import { createDisk, newName } from '../../helpers/disks.ts';
import { request, sendRaw } from '../../helpers/raw-http.ts';
import { Stack } from '../../helpers/stack.ts';
import { unicodeText } from '../../helpers/unicode-text.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  diskId: string;
}

const test = anyTest as TestFn<Context>;

// The region is closed once the disk is there: a creation that is right answers 403 and costs
// nothing.
test.before(async (t) => {
  const stack = await Stack.start({ REGION_PREVIEW: 'true', LOG_LEVEL: 'warn' });
  t.context.stack = stack;
  const { accounts, apiKeys } = await stack.openDirectory();
  const account = await accounts.create(newName());
  const { token } = await apiKeys.create(account, { name: 'test' });
  t.context.api = new ApiClient(stack.baseUrl, token);
  await accounts.setRegionAccess(account.id, 'local-test', true);
  t.context.diskId = (await createDisk(t.context.api)).id;
  await accounts.setRegionAccess(account.id, 'local-test', false);
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const anyText = unicodeText({ maxLength: 120 });

test('a disk name is accepted exactly when its characters and its length are valid', async (t) => {
  const name = fc.oneof(
    anyText,
    fc.string({ unit: fc.constantFrom(...'aZ09_-'.split('')), maxLength: 110 }),
    fc.string({ unit: fc.constantFrom(...'aZ09_-.\n /'.split('')), maxLength: 20 }),
  );
  await fc.assert(
    fc.asyncProperty(name, async (value) => {
      const { status } = await t.context.api.call('POST', '/api/disks', { name: value });
      const right = /^[a-zA-Z0-9_-]{1,100}$/u.test(value) && !value.includes('\n');
      t.is(status, right ? 403 : 400);
    }),
    { numRuns: 150 },
  );
});

test('any name filter finds nothing or is refused', async (t) => {
  await fc.assert(
    fc.asyncProperty(anyText, async (value) => {
      const query = `name=${encodeURIComponent(value.toWellFormed())}`;
      const { status, body } = await t.context.api.call('GET', `/api/disks?${query}`);
      t.true(status === 400 || (status === 200 && (body.data as object[]).length === 0));
    }),
    { numRuns: 100 },
  );
});

test('a cursor that the server did not issue is refused', async (t) => {
  const likeOurs = fc
    .tuple(fc.stringMatching(/^\d{0,17}$/u), fc.constantFrom(':', '', '::'), anyText)
    .map((parts) => Buffer.from(parts.join('')).toString('base64url'));
  const cursor = fc.oneof(
    anyText.map((text) => text.toWellFormed()),
    fc.base64String(),
    likeOurs,
  );
  await fc.assert(
    fc.asyncProperty(cursor, fc.constantFrom('/api/disks', '/api/tokens'), async (value, path) => {
      const query = `cursor=${encodeURIComponent(value)}`;
      const { status, body } = await t.context.api.call('GET', `${path}?${query}`);
      t.true(status === 200 || status === 400);
      t.not(body.nextCursor, value);
    }),
    { numRuns: 150 },
  );
});

test('any query is answered with 200 or 400', async (t) => {
  const name = fc.oneof(fc.constantFrom('limit', 'cursor', 'name', '__proto__'), anyText);
  const pair = fc
    .tuple(name, anyText)
    .map((parts) => parts.map((part) => encodeURIComponent(part.toWellFormed())).join('='));
  const query = fc.oneof(
    fc.array(pair, { maxLength: 4 }).map((pairs) => pairs.join('&')),
    fc.string({ unit: fc.constantFrom(...'%&=+?[]limitname019'.split('')) }),
  );
  await fc.assert(
    fc.asyncProperty(query, async (value) => {
      const { status } = await t.context.api.call('GET', `/api/disks?${value}`);
      t.true(status === 200 || status === 400, `${status}`);
    }),
    { numRuns: 150 },
  );
});

/** A second implementation of the rule, independent of the service's. */
function isAllowed(entry: string): boolean {
  const [address = '', bits, ...rest] = entry.split('/');
  if (isIP(address) === 0 || address.includes('%') || rest.length > 0) return false;
  if (bits === undefined) return true;
  return /^\d+$/u.test(bits) && Number(bits) <= (isIPv4(address) ? 32 : 128);
}

test('allowed IPs are accepted exactly when each is an address or a block, and are stored as shown', async (t) => {
  const address = fc.oneof(fc.ipV4(), fc.ipV6(), fc.ipV4Extended());
  const block = fc.tuple(address, fc.integer({ min: 0, max: 140 })).map((parts) => parts.join('/'));
  const nearly = fc.string({
    unit: fc.constantFrom(...'0123456789abcdef:./%x'.split('')),
    maxLength: 30,
  });
  const entry = fc
    .oneof(address, block, nearly)
    .filter((text) => text.length >= 2 && text.length <= 64);
  const path = `/api/disks/${t.context.diskId}/allowed-ips`;
  await fc.assert(
    fc.asyncProperty(fc.array(entry, { maxLength: 3 }), async (allowedIps) => {
      const reply = await t.context.api.call<{ data: { allowedIps: string[] } }>('PUT', path, {
        allowedIps,
      });
      t.is(reply.status, allowedIps.every(isAllowed) ? 200 : 400, JSON.stringify(allowedIps));
      if (reply.status !== 200) return;
      const again = await t.context.api.data('PUT', path, reply.body.data);
      t.deepEqual(again, reply.body.data);
    }),
    { numRuns: 60 },
  );
});

test('an Authorization header that is no key is refused', async (t) => {
  const { stack } = t.context;
  const prefix = fc.constantFrom('', 'Bearer ', 'bearer key-', 'key-', 'dt-', 'Basic ');
  const rest = fc.oneof(
    fc.string({ unit: 'grapheme-ascii' }),
    fc.uint8Array().map((bytes) => Buffer.from(bytes).toString('latin1')),
  );
  await fc.assert(
    fc.asyncProperty(prefix, rest, async (start, end) => {
      const authorization = `${start}${end}`.replaceAll(/[\r\n]/gu, '');
      const bytes = request('GET', '/api/disks', { authorization, connection: 'close' });
      const [reply] = await sendRaw(stack.baseUrl, Buffer.from(bytes, 'latin1'));
      // A byte that no header may hold is refused before we see it.
      const plain = /^[\t\x20-\x7E\x80-\xFF]*$/u.test(authorization);
      t.is(reply?.status, plain ? 401 : 400);
    }),
    { numRuns: 150 },
  );
});

/** A command that gets through would take its time: none is right. */
const isExec = (operationId: string): boolean => operationId.startsWith('exec');

/** No host of this stack runs sandboxes or builds images. */
const isRefused = (operationId: string, { body }: { body: unknown }): boolean =>
  ['createSandbox', 'buildImage', 'getImage'].includes(operationId) &&
  Reflect.get(Object(body), 'code') === 'not_enabled';

test('any path gets a documented answer, and never a 500', async (t) => {
  const segment = fc.oneof(
    anyText.filter((text) => text !== '' && !/^\.\.?$/u.test(text)),
    fc.constantFrom('token', 'dsk-0123456789abcdef', '%00', 'x'.repeat(3000)),
  );
  await fc.assert(
    fc.asyncProperty(fc.constantFrom(...routes), segment, async (route, text) => {
      const path = route.path.replaceAll(/\{\w+\}/gu, encodeURIComponent(text.toWellFormed()));
      const reply = await t.context.api.call(route.method.toUpperCase(), path);
      const { status } = reply;
      if (isRefused(route.operationId, reply)) return;
      t.true(status < 500 || status === 501, `${status}`);
      t.not(status, 501);
    }),
    { numRuns: 200 },
  );
});

test('any body gets a documented answer, and never a 500', async (t) => {
  const { api, diskId } = t.context;
  const withBody = routes.filter(({ body }) => body !== undefined);
  const field = fc.constantFrom(
    'name',
    'type',
    'principal',
    'nickname',
    'tokenSuffix',
    'allowedIps',
    'allowedOrigins',
    'rootAttrs',
    'mounts',
    'authMethods',
    'clientId',
    'inodeId',
    'description',
    'disks',
    'env',
    'base_image',
    'vcpu_count',
    'network',
    'ports',
    '__proto__',
    'constructor',
  );
  const value = fc.oneof(
    fc.jsonValue(),
    fc.constantFrom('token', 'awssts', 2 ** 53, -0, 1e308, [], {}, null, ''),
    anyText,
  );
  const body = fc.oneof(
    fc.dictionary(field, value).map((fields) => JSON.stringify(fields)),
    fc.json(),
    anyText,
  );
  await fc.assert(
    fc.asyncProperty(fc.constantFrom(...withBody), body, async (route, text) => {
      const path = route.path.replace('{id}', diskId);
      const reply = await api.call(route.method.toUpperCase(), path, text);
      const { status } = reply;
      if (isRefused(route.operationId, reply)) return;
      t.true(status < 500, `${status}`);
      if (isExec(route.operationId)) t.is(status, 400);
    }),
    { numRuns: 300 },
  );
});

test('arbitrary bytes get an HTTP error or no answer', async (t) => {
  const { stack, api } = t.context;
  const head = request('POST', '/api/disks', {
    authorization: api.key,
    'content-type': 'application/json',
    connection: 'close',
  });
  const bytes = fc.oneof(
    fc
      .uint8Array({ minLength: 1 })
      .map((array) => Buffer.from(`${Buffer.from(array).toString('latin1')}\r\n\r\n`, 'latin1')),
    fc
      .tuple(fc.nat({ max: head.length - 1 }), fc.integer({ min: 0, max: 255 }))
      .map(([at, byte]) => {
        const changed = Buffer.from(head);
        changed[at] = byte;
        return changed;
      }),
  );
  await fc.assert(
    fc.asyncProperty(bytes, async (message) => {
      const status = await statusOf(stack.baseUrl, message);
      t.true(status === undefined || (status >= 400 && status < 500), `${status}`);
    }),
    { numRuns: 100 },
  );
  t.is((await api.call('GET', '/api/disks')).status, 200);
});

/** Undefined when the server closed without an answer. */
async function statusOf(baseUrl: string, message: Buffer): Promise<number | undefined> {
  const [reply] = await sendRaw(baseUrl, message, { end: true });
  return reply?.status;
}

const deep = '['.repeat(2_000_000);
const shapes: Readonly<Record<string, string>> = {
  'two million arrays within each other': deep,
  'a million objects within each other': '{"a":'.repeat(1_000_000),
  'deep nesting below a key that nobody knows': `{"name":"x","y":${deep}`,
  'half a million keys': `{${Array.from({ length: 500_000 }, (_, i) => `"k${i}":0`).join(',')}}`,
  'a key that would be a prototype': '{"name":"x","__proto__":{"name":"y"}}',
  'no object at all': '7',
  'text that is not Unicode': String.raw`{"name":"x","description":"\ud800"}`,
};
for (const [what, body] of Object.entries(shapes)) {
  test(`a body of ${what} is refused with 400`, async (t) => {
    const { api, diskId } = t.context;
    for (const path of ['/api/disks', `/api/disks/${diskId}/exec`]) {
      const reply = await api.call('POST', path, body);
      t.is(reply.status, 400);
      t.is(reply.body.code, 'bad_request');
    }
  });
}
