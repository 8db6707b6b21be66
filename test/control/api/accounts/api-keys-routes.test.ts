import { keys } from '../../../../shared/directory/keys.ts';
import { orderedMember } from '../../../../shared/directory/page.ts';
import { DIRECTORY_LIMITS } from '../../../../shared/directory/limits.ts';
import type { ApiKey } from '../../../../shared/schemas/api-key.ts';
import { sha256 } from '../../../../shared/secrets.ts';
import { ApiClient } from '../../../helpers/api.ts';
import { newName } from '../../../helpers/disks.ts';
import { ObjectClient, s3UrlOf } from '../../../helpers/objects.ts';
import { dumpRedis } from '../../../helpers/redis-contents.ts';
import { stackTest } from '../../../helpers/stack-test.ts';
import { waitFor } from '../../../helpers/wait.ts';

type CreatedKey = ApiKey & { token: string };

interface ListBody {
  data: { tokens: ApiKey[] };
  nextCursor?: string;
}

const test = stackTest();

const createKey = (api: ApiClient, body: object = { name: 'n' }): Promise<CreatedKey> =>
  api.data('POST', '/api/tokens', body);

const list = async (api: ApiClient, query = ''): Promise<ListBody> =>
  (await api.call<ListBody>('GET', `/api/tokens${query}`)).body;

test('a new key is shown once, works, and is listed without its token', async (t) => {
  const api = await t.context.stack.newClient();
  const reply = await api.call<{ data: CreatedKey }>('POST', '/api/tokens', {
    name: 'ci',
    description: 'for the builds',
  });
  t.is(reply.status, 201);
  const { token, ...key } = reply.body.data;
  t.regex(token, /^key-[\w-]{32,}$/u);
  t.like(key, { name: 'ci', description: 'for the builds', tokenSuffix: token.slice(-4) });
  t.is(key.id, sha256(token));
  t.is(key.lastUsedAt, undefined);
  const { data } = await list(api);
  t.deepEqual(data.tokens.at(-1), key);
  t.is(data.tokens.length, 2);
  t.false(JSON.stringify(data).includes(token));
  t.is((await api.withKey(token).call('GET', '/api/disks')).status, 200);
});

test('a key created with another key sees the same account', async (t) => {
  const api = await t.context.stack.newClient();
  const { token } = await createKey(api);
  await api.data('POST', '/api/disks', { name: 'shared' });
  const disks = await api.withKey(token).data<{ name: string }[]>('GET', '/api/disks');
  t.deepEqual(
    disks.map(({ name }) => name),
    ['shared'],
  );
});

test('the last use of a key is recorded', async (t) => {
  const api = await t.context.stack.newClient();
  const { id, token, createdAt } = await createKey(api);
  const find = async (): Promise<ApiKey | undefined> =>
    (await list(api)).data.tokens.find((key) => key.id === id);
  t.is((await find())?.lastUsedAt, undefined);
  await api.withKey(token).call('GET', '/api/disks');
  const lastUsedAt = await waitFor('the use', async () => (await find())?.lastUsedAt);
  t.true(lastUsedAt >= createdAt);
});

test('keys are stored as hashes only', async (t) => {
  const api = await t.context.stack.newClient();
  const { id, token } = await createKey(api);
  const stored = await dumpRedis(await t.context.stack.redisClient());
  t.true(stored.includes(id));
  for (const secret of [token, token.slice('key-'.length), api.key]) {
    t.false(stored.includes(secret));
    t.false(stored.includes(Buffer.from(secret).toString('base64').slice(0, -4)));
  }
});

test('a deleted key stops working at once, even if it deleted itself', async (t) => {
  const api = await t.context.stack.newClient();
  const { id, token } = await createKey(api);
  const other = api.withKey(token);
  t.is((await other.call('GET', '/api/disks')).status, 200);
  const reply = await other.call<{ data: { message: string } }>('DELETE', `/api/tokens/${id}`);
  t.is(reply.status, 200);
  t.is(typeof reply.body.data.message, 'string');
  t.is((await other.call('GET', '/api/disks')).status, 401);
  t.is((await list(api)).data.tokens.length, 1);
  t.is((await api.call('DELETE', `/api/tokens/${id}`)).status, 404);
});

test('a deleted key stops within a second at other nodes, and a new one works there at once', async (t) => {
  const { stack } = t.context;
  const api = await stack.newClient();
  const other = await stack.addControl();
  await other.start();
  const { id: diskId } = await api.data<{ id: string }>('POST', '/api/disks', { name: newName() });
  const { id, token } = await createKey(api);
  const elsewhere = new ApiClient(other.environment['PUBLIC_BASE_URL'] ?? '', token);
  const objects = new ObjectClient(s3UrlOf(stack), token);
  const ask = async (): Promise<number[]> => [
    (await elsewhere.call('GET', '/api/disks')).status,
    (await objects.call('GET', `/${diskId}`)).status,
  ];
  t.deepEqual(await ask(), [200, 200]);
  await api.data('DELETE', `/api/tokens/${id}`);
  await waitFor('the key to be refused', async () => (await ask()).join() === '401,403');
});

test("another account's key cannot be deleted and looks missing", async (t) => {
  const { api, stack } = t.context;
  const theirs = await stack.newClient();
  const id = sha256(theirs.key);
  const missingId = sha256('no key');
  const foreign = await api.call('DELETE', `/api/tokens/${id}`);
  const missing = await api.call('DELETE', `/api/tokens/${missingId}`);
  t.is(foreign.status, 404);
  t.is(foreign.body.code, 'not_found');
  t.is(JSON.stringify(foreign.body).replaceAll(id, missingId), JSON.stringify(missing.body));
  t.is((await theirs.call('GET', '/api/disks')).status, 200);
});

test('a malformed key id is not found', async (t) => {
  for (const id of ['x', '..%2F..', 'a'.repeat(5000), '%00']) {
    t.is((await t.context.api.call('DELETE', `/api/tokens/${id}`)).status, 404, id);
  }
});

test('keys are listed in pages', async (t) => {
  const api = await t.context.stack.newClient();
  for (const name of ['a', 'b', 'c', 'd']) await createKey(api, { name });
  const first = await list(api, '?limit=3');
  t.is(first.data.tokens.length, 3);
  const rest = await list(api, `?limit=3&cursor=${first.nextCursor}`);
  t.is(rest.nextCursor, undefined);
  t.deepEqual(
    [...first.data.tokens, ...rest.data.tokens].map(({ name }) => name),
    ['test', 'a', 'b', 'c', 'd'],
  );
  t.is((await api.call('GET', '/api/tokens?limit=0')).status, 400);
  t.is((await api.call('GET', '/api/tokens?cursor=garbled')).status, 400);
});

const refused = test.macro({
  async exec(t, body: unknown, message: RegExp) {
    const reply = await t.context.api.call('POST', '/api/tokens', body);
    t.is(reply.status, 400);
    t.is(reply.body.code, 'bad_request');
    t.regex(reply.body.error, message);
  },
  title: (given) => `a key is refused: ${given}`,
});

test('no name', refused, {}, /'name'/u);
test('an empty name', refused, { name: '' }, /name/u);
test('a long name', refused, { name: 'n'.repeat(101) }, /name/u);
test('a long description', refused, { name: 'n', description: 'd'.repeat(501) }, /description/u);
test('a name that is no text', refused, { name: ['n'] }, /name/u);

test('the longest name and description are accepted', async (t) => {
  const name = 'ü'.repeat(100);
  const description = '\n'.repeat(500);
  t.like(await createKey(t.context.api, { name, description }), { name, description });
});

test('an account at its limit is told to delete a key', async (t) => {
  const { stack } = t.context;
  const api = await stack.newClient();
  const redis = await stack.redisClient();
  const accountId = await redis.hget(keys.apiKey(sha256(api.key)), 'accountId');
  const now = new Date().toISOString();
  const members = Array.from({ length: DIRECTORY_LIMITS.apiKeysPerAccountMax - 1 }, (_, i) => [
    0,
    orderedMember(now, String(i)),
  ]);
  await redis.zadd(keys.apiKeys(accountId ?? ''), ...(members.flat() as [number, string]));
  const reply = await api.call('POST', '/api/tokens', { name: 'n' });
  t.is(reply.status, 400);
  t.regex(reply.body.error, /delete one first/u);
});
