/* The API of ports and port tokens, on sandboxes as their host would have published them. */
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Directory } from '../../../../shared/directory/directory.ts';
import { keys } from '../../../../shared/directory/keys.ts';
import { removeRoute } from '../../../../shared/directory/sandbox-routes.ts';
import { newSandboxId, routeIdOf } from '../../../../shared/ids.ts';
import { SCHEMA_LIMITS } from '../../../../shared/schemas/limits.ts';
import type { EndedWithKey } from '../../../../shared/schemas/api-key.ts';
import type { PortToken, SandboxPort } from '../../../../shared/schemas/sandbox-port.ts';
import type { Sandbox } from '../../../../shared/schemas/sandbox.ts';
import { ApiClient } from '../../../helpers/api.ts';
import { newName } from '../../../helpers/disks.ts';
import { sandboxRecord } from '../../../helpers/sandbox-records.ts';
import { Stack } from '../../../helpers/stack.ts';
import { waitFor } from '../../../helpers/wait.ts';

const REGION = 'local-test';

interface Context {
  stack: Stack;
  directory: Directory;
  api: ApiClient;
  accountId: string;
  keyId: string;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start({ INGRESS_ZONE: 'ports.example' });
  const directory = await stack.openDirectory();
  const account = await directory.accounts.create(newName());
  const { token, record } = await directory.apiKeys.create(account, { name: 'test' });
  const api = new ApiClient(stack.baseUrl, token);
  Object.assign(t.context, { stack, directory, api, accountId: account.id, keyId: record.id });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

type Test = ExecutionContext<Context>;

async function publish(
  { context: { directory, accountId } }: Test,
  config: Parameters<typeof sandboxRecord>[0] = {},
): Promise<{ id: string; path: string; name: string }> {
  const record = sandboxRecord({ accountId, ...config });
  await directory.sandboxes.publish(record);
  return { id: record.id, path: `/api/sandboxes/${record.id}`, name: record.config.name };
}

const portsOf = async ({ context: { api } }: Test, path: string): Promise<SandboxPort[]> =>
  (await api.data<{ ports: SandboxPort[] }>('GET', `${path}/ports`)).ports;

const tokensOf = async ({ context: { api } }: Test, path: string): Promise<PortToken[]> =>
  (await api.data<{ tokens: PortToken[] }>('GET', `${path}/port-tokens`)).tokens;

const hostnameOf = (port: number, id: string): string =>
  `${port}-${id.replaceAll('-', '')}.ports.example`;

/** All that Redis has of a sandbox's ports. */
const keysOf = async (t: Test, id: string): Promise<string[]> =>
  (await t.context.stack.redisClient()).keys(`*${routeIdOf(id)}*`);

test('a port is exposed once, listed with its hostname, and closed again', async (t) => {
  const { api } = t.context;
  const { id, path } = await publish(t);
  t.deepEqual(await portsOf(t, path), []);
  const first = await api.call('PUT', `${path}/ports/8080`);
  t.is(first.status, 201);
  t.deepEqual(first.body.data, { port: 8080, hostname: hostnameOf(8080, id) });
  const again = await api.call('PUT', `${path}/ports/8080`);
  t.is(again.status, 200);
  t.deepEqual(again.body.data, first.body.data);
  t.is((await api.call('PUT', `${path}/ports/22`)).status, 201);
  t.deepEqual(
    (await portsOf(t, path)).map(({ port }) => port),
    [22, 8080],
  );
  t.is((await api.call('DELETE', `${path}/ports/8080`)).status, 204);
  t.is((await api.call('DELETE', `${path}/ports/8080`)).status, 204);
  t.deepEqual(await portsOf(t, path), [{ port: 22, hostname: hostnameOf(22, id) }]);
});

test('many at once expose a port once', async (t) => {
  const { path } = await publish(t);
  const replies = await Promise.all(
    Array.from({ length: 10 }, () => t.context.api.call('PUT', `${path}/ports/80`)),
  );
  t.is(replies.filter(({ status }) => status === 201).length, 1);
  t.is(replies.filter(({ status }) => status === 200).length, 9);
});

test('a sandbox exposes a limited number of ports', async (t) => {
  const { api, directory, keyId } = t.context;
  const { id, path } = await publish(t);
  for (let port = 1; port <= SCHEMA_LIMITS.portsPerSandboxMax; port += 1) {
    t.is(await directory.sandboxRoutes.expose(id, port, keyId), 'added');
  }
  t.is((await api.call('PUT', `${path}/ports/1`)).status, 200);
  const refused = await api.call('PUT', `${path}/ports/9999`);
  t.is(refused.status, 400);
  t.regex(refused.body.error, /delete one first/u);
});

test('ports outside of their range are refused', async (t) => {
  const { path } = await publish(t);
  for (const port of ['0', '65536', '-1', 'http', '1.5', '%20']) {
    for (const method of ['PUT', 'DELETE']) {
      const reply = await t.context.api.call(method, `${path}/ports/${port}`);
      t.is(reply.status, 400, `${method} ${port}`);
    }
  }
});

test('a port token is shown once, its hash is its id, and only that is stored', async (t) => {
  const { api, stack } = t.context;
  const { id, path } = await publish(t);
  const before = Date.now();
  const reply = await api.call<{ data: PortToken & { token: string } }>(
    'POST',
    `${path}/port-tokens`,
    { port: 3000, ttl: '1h30m' },
  );
  t.is(reply.status, 201);
  const { token, ...shown } = reply.body.data;
  t.is(shown.id, createHash('sha256').update(token).digest('hex'));
  t.is(shown.hostname, hostnameOf(3000, id));
  t.is(Date.parse(shown.expires_at ?? '') - Date.parse(shown.created_at), 5_400_000);
  t.true(Date.parse(shown.created_at) >= before);
  t.deepEqual(await tokensOf(t, path), [shown]);
  t.deepEqual(await api.data('GET', `${path}/port-tokens/${shown.id}`), shown);
  const redis = await stack.redisClient();
  const stored = await redis.hgetall(keys.sandboxRoute(REGION, routeIdOf(id)));
  t.false(JSON.stringify(stored).includes(token));
});

test('without a ttl a token never expires', async (t) => {
  const { path } = await publish(t);
  const token = await t.context.api.data<PortToken>('POST', `${path}/port-tokens`, { port: 1 });
  t.false('expires_at' in token);
});

for (const ttl of ['', '5', 'm', '-1m', '0s', '8761h', '1d', '1h 30m', '1e3s', ' 4m']) {
  test(`a ttl of "${ttl}" is refused`, async (t) => {
    const { path } = await publish(t);
    const reply = await t.context.api.call('POST', `${path}/port-tokens`, { port: 80, ttl });
    t.like(reply, { status: 400, body: { code: 'bad_request' } });
  });
}

for (const ttl of ['8760h', '4m', '1.5h', '500ms', '525600m']) {
  test(`a ttl of "${ttl}" is taken`, async (t) => {
    const { path } = await publish(t);
    const reply = await t.context.api.call('POST', `${path}/port-tokens`, { port: 80, ttl });
    t.is(reply.status, 201);
  });
}

test('tokens that have expired are neither listed nor found, and are forgotten', async (t) => {
  const { api } = t.context;
  const { id, path } = await publish(t);
  const brief = await api.data<PortToken>('POST', `${path}/port-tokens`, { port: 80, ttl: '1ms' });
  const lasting = await api.data<PortToken>('POST', `${path}/port-tokens`, { port: 81 });
  await sleep(5);
  t.is((await api.call('GET', `${path}/port-tokens/${brief.id}`)).status, 404);
  t.is((await api.call('DELETE', `${path}/port-tokens/${brief.id}`)).status, 404);
  t.deepEqual(
    (await tokensOf(t, path)).map(({ id: listed }) => listed),
    [lasting.id],
  );
  const redis = await t.context.stack.redisClient();
  const fields = await redis.hkeys(keys.sandboxRoute(REGION, routeIdOf(id)));
  t.deepEqual(
    fields.filter((field) => field.startsWith('token:')),
    [`token:${lasting.id}`],
  );
  t.is(await redis.zcard(keys.portTokenEnds(REGION, routeIdOf(id))), 0);
});

test('tokens are listed oldest first, in pages', async (t) => {
  const { api } = t.context;
  const { path } = await publish(t);
  const ids: string[] = [];
  for (let port = 1; port <= 5; port += 1) {
    ids.push((await api.data<PortToken>('POST', `${path}/port-tokens`, { port })).id);
    await sleep(2);
  }
  const found: string[] = [];
  let cursor = '';
  do {
    const query = `limit=2${cursor === '' ? '' : `&cursor=${cursor}`}`;
    const reply = await api.call<{ data: { tokens: PortToken[] }; nextCursor?: string }>(
      'GET',
      `${path}/port-tokens?${query}`,
    );
    found.push(...reply.body.data.tokens.map(({ id }) => id));
    cursor = reply.body.nextCursor ?? '';
  } while (cursor !== '');
  t.deepEqual(found, ids);
  t.is((await api.call('GET', `${path}/port-tokens?cursor=garbled`)).status, 400);
});

test('a revoked token is gone', async (t) => {
  const { api } = t.context;
  const { path } = await publish(t);
  const { id } = await api.data<PortToken>('POST', `${path}/port-tokens`, { port: 80 });
  t.is((await api.call('DELETE', `${path}/port-tokens/${id}`)).status, 204);
  t.is((await api.call('DELETE', `${path}/port-tokens/${id}`)).status, 404);
  t.deepEqual(await tokensOf(t, path), []);
});

test('ports and tokens of other accounts are not found', async (t) => {
  const { api, stack } = t.context;
  const { path } = await publish(t);
  const { id } = await api.data<PortToken>('POST', `${path}/port-tokens`, { port: 80 });
  const other = await stack.newClient();
  for (const [method, sub, body] of [
    ['GET', 'ports'],
    ['PUT', 'ports/80'],
    ['DELETE', 'ports/80'],
    ['GET', 'port-tokens'],
    ['POST', 'port-tokens', { port: 80 }],
    ['GET', `port-tokens/${id}`],
    ['DELETE', `port-tokens/${id}`],
  ] as const) {
    const reply = await other.call(method, `${path}/${sub}`, body);
    t.like(reply, { status: 404, body: { code: 'not_found' } }, `${method} ${sub}`);
  }
  t.is((await tokensOf(t, path)).length, 1);
  // Nor at another sandbox of the same account.
  const neighbour = await publish(t);
  t.is((await api.call('GET', `${neighbour.path}/port-tokens/${id}`)).status, 404);
  t.is((await api.call('DELETE', `${neighbour.path}/port-tokens/${id}`)).status, 404);
});

test('ports and tokens are removed with their sandbox, and none come after', async (t) => {
  const { api, directory, accountId, keyId } = t.context;
  const { id, path, name } = await publish(t);
  await api.data('PUT', `${path}/ports/80`);
  await api.data('POST', `${path}/port-tokens`, { port: 80, ttl: '1h' });
  t.true((await keysOf(t, id)).length > 0);
  await directory.sandboxes.remove({ accountId, sandboxId: id, name });
  t.deepEqual(await keysOf(t, id), []);
  // A request that has found the sandbox just before.
  t.is(await directory.sandboxRoutes.expose(id, 80, keyId), 'missing');
  t.is(await directory.portTokens.create(id, { port: 80, ttlMs: undefined }), 'missing');
  t.deepEqual(await keysOf(t, id), []);
});

test('ports that a sandbox is created with stay when its owner announces it, and else lapse', async (t) => {
  const { directory, accountId, stack, keyId } = t.context;
  const redis = await stack.redisClient();
  const sandboxId = newSandboxId();
  await directory.sandboxRoutes.prepare({ accountId, sandboxId }, keyId, [80, 443]);
  const key = keys.sandboxRoute(REGION, routeIdOf(sandboxId));
  t.true((await redis.pttl(key)) > 0);
  t.is(await directory.sandboxRoutes.find(routeIdOf(sandboxId), 80), undefined);
  await publish(t, { id: sandboxId });
  t.is(await redis.pttl(key), -1);
  t.deepEqual(await directory.sandboxRoutes.exposedPorts(sandboxId), [80, 443]);
});

test('services of a sandbox show the ports that they publish as endpoints', async (t) => {
  const { api, directory } = t.context;
  const { id, path } = await publish(t, { config: { enableServiceIngress: true } });
  await directory.sandboxRoutes.addServicePort(id, 9000);
  await api.data('PUT', `${path}/ports/80`);
  const shown = await api.data<Sandbox>('GET', path);
  t.true(shown.enable_service_ingress);
  t.deepEqual(shown.endpoints, [{ port: 9000, hostname: hostnameOf(9000, id) }]);
  t.deepEqual(
    (await portsOf(t, path)).map(({ port }) => port),
    [80],
  );
  const { sandboxes } = await api.data<{ sandboxes: Sandbox[] }>('GET', '/api/sandboxes');
  t.deepEqual(
    sandboxes.find(({ sandbox_id: listed }) => listed === id)?.endpoints,
    shown.endpoints,
  );
});

test('before its owner has announced a sandbox, its ports are unavailable', async (t) => {
  const { api } = t.context;
  const { id, path } = await publish(t);
  await removeRoute(await t.context.stack.redisClient(), REGION, id); // The state after a loss of Redis's data.
  t.is((await api.call('PUT', `${path}/ports/80`)).status, 503);
  t.is((await api.call('POST', `${path}/port-tokens`, { port: 80 })).status, 503);
});

test('a route id is one DNS label together with its port', (t) => {
  const label = `65535-${routeIdOf(newSandboxId())}`;
  t.regex(label, /^[a-z0-9-]{1,63}$/u);
});

test('a public port ends with the last of the keys that exposed it', async (t) => {
  const { api, stack } = t.context;
  const { id, path } = await publish(t);
  const other = await publish(t);
  const newKey = async (expiresAt?: string) => {
    const body = { name: 'brief', ...(expiresAt === undefined ? {} : { expiresAt }) };
    const key = await api.data<{ id: string; token: string }>('POST', '/api/tokens', body);
    return { id: key.id, api: api.withKey(key.token) };
  };
  const [first, second] = [await newKey(), await newKey(new Date(Date.now() + 1500).toISOString())];
  t.is((await first.api.call('PUT', `${path}/ports/80`)).status, 201);
  t.is((await first.api.call('PUT', `${path}/ports/81`)).status, 201);
  t.is((await first.api.call('PUT', `${other.path}/ports/1`)).status, 201);
  t.is((await api.call('PUT', `${path}/ports/81`)).status, 200);
  t.is((await second.api.call('PUT', `${path}/ports/82`)).status, 201);
  const isPublic = async (port: number): Promise<boolean | undefined> => {
    const { sandboxRoutes } = await stack.openDirectory();
    return (await sandboxRoutes.find(routeIdOf(id), port))?.isExposed;
  };
  t.deepEqual(await Promise.all([80, 81, 82].map(isPublic)), [true, true, true]);
  const { ended } = await api.data<{ ended: EndedWithKey }>('DELETE', `/api/tokens/${first.id}`);
  t.deepEqual(
    ended.ports.toSorted((a, b) => b.port - a.port),
    [
      { sandbox_id: id, port: 80 },
      { sandbox_id: other.id, port: 1 },
    ],
  );
  t.deepEqual(await Promise.all([80, 81].map(isPublic)), [false, true]);
  await waitFor('the end of a key', async () => (await isPublic(82)) === false);
  t.deepEqual(
    (await portsOf(t, path)).map(({ port }) => port),
    [81],
  );
  // Exposed again by a key that is there.
  t.is((await api.call('PUT', `${path}/ports/82`)).status, 201);
  t.true(await isPublic(82));
  // A port of an earlier version carries no key.
  const redis = await stack.redisClient();
  await redis.hset(keys.sandboxRoute(REGION, routeIdOf(id)), 'port:83', '1');
  t.true(await isPublic(83));
  t.is((await api.call('PUT', `${path}/ports/83`)).status, 200);
  t.true(await isPublic(83));
});
