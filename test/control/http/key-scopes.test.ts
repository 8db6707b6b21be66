/* Scopes and ends of keys: they, and whatever was made with them. */
import { readFile } from 'node:fs/promises';
import type { Redis } from 'ioredis';
import { routes } from '../../../control/routes.ts';
import type { KeyScope } from '../../../shared/key-scopes.ts';
import { accountScopes, keyScopes } from '../../../shared/key-scopes.ts';
import { keys } from '../../../shared/directory/keys.ts';
import { newSandboxId } from '../../../shared/ids.ts';
import type { ApiKey } from '../../../shared/schemas/api-key.ts';
import type { AuthorizedUser } from '../../../shared/schemas/disk-user.ts';
import type { ShareUrl } from '../../../shared/schemas/share.ts';
import type { Snapshot } from '../../../shared/schemas/snapshot.ts';
import type { ApiClient } from '../../helpers/api.ts';
import { createDisk, exec, newName, readManifest } from '../../helpers/disks.ts';
import { type ApiDescription, operationsOf } from '../../helpers/described-requests.ts';
import { s3UrlOf } from '../../helpers/objects.ts';
import { presign } from '../../helpers/presign.ts';
import { sandboxRecord } from '../../helpers/sandbox-records.ts';
import { download } from '../../helpers/shares.ts';
import { stackTest } from '../../helpers/stack-test.ts';
import { waitFor } from '../../helpers/wait.ts';

interface Operation {
  readonly name: string;
  readonly method: string;
  readonly path: string;
  /** The roles of each way to authorize. */
  readonly roles: readonly string[][];
}

const test = stackTest(undefined, async ({ stack, api }) => {
  const document = (await (await fetch(`${stack.baseUrl}/openapi.json`)).json()) as ApiDescription;
  const operations = operationsOf(document).map(([method, path, operation]): Operation => {
    const security: unknown = Reflect.get(operation, 'security');
    const ways = (security as Record<string, string[]>[]).flatMap((way) => Object.values(way));
    return {
      name: operation.operationId,
      method: method.toUpperCase(),
      path: path.replaceAll(/\{\w+\}/gu, 'x'),
      roles: ways,
    };
  });
  const ofScope = async (scope: KeyScope): Promise<[string, ApiClient]> => [
    scope,
    (await newKey(api, { scopes: [scope] })).api,
  ];
  const clients = Object.fromEntries([
    ...(await Promise.all(accountScopes.map(ofScope))),
    ['operator', await stack.newClient(['operator'])],
  ]);
  return { operations, clients };
});

async function newKey(api: ApiClient, body: object): Promise<{ api: ApiClient; key: ApiKey }> {
  const created = await api.data<ApiKey & { token: string }>('POST', '/api/tokens', {
    name: 'limited',
    ...body,
  });
  return { api: api.withKey(created.token), key: created };
}

const soon = (ms: number): string => new Date(Date.now() + ms).toISOString();

test('every operation of the description says which scope it needs', (t) => {
  for (const { name, roles } of t.context.operations) {
    if (name === 'downloadShared' || name === 'joinHost') {
      t.deepEqual(roles, []);
      continue;
    }
    t.is(roles.length, 2, name);
    for (const [scope, ...others] of roles) {
      t.true((keyScopes as readonly string[]).includes(scope ?? ''), name);
      t.deepEqual(others, [], name);
    }
  }
});

test('a key does what its scope says, and is refused everything else', async (t) => {
  const { operations, clients } = t.context;
  const wrong: string[] = [];
  for (const [scope, api] of Object.entries(clients)) {
    for (const { name, method, path, roles } of operations) {
      const [[needed = ''] = []] = roles;
      if (roles.length === 0) continue;
      const isAllowed =
        needed === 'read' || needed === scope || (scope === 'admin' && needed !== 'operator');
      const body = method === 'GET' || method === 'DELETE' ? undefined : 'no JSON';
      const { status, body: answer } = await api.call(method, path, body);
      const isRefused = status === 403 && answer.code === 'insufficient_scope';
      if (isAllowed === isRefused) wrong.push(`${name} with ${scope}: ${status} ${answer.code}`);
    }
  }
  t.deepEqual(wrong, []);
});

test('keys of earlier versions, which have no scope, may do everything', async (t) => {
  const { stack } = t.context;
  const { api, key } = await newKey(await stack.newClient(), {});
  const redis = await stack.redisClient();
  await redis.hdel(keys.apiKey(key.id), 'scopes');
  const { tokens } = await api.data<{ tokens: ApiKey[] }>('GET', '/api/tokens');
  t.deepEqual(tokens.at(-1)?.scopes, ['admin']);
  t.is((await api.call('POST', '/api/disks', { name: newName() })).status, 201);
});

test('a disk is mounted in a sandbox only with the scope of disks besides', async (t) => {
  const { api, clients } = t.context;
  const { id } = await createDisk(api);
  const body = { mounts: [{ disk_id: id, path: '/data' }] };
  const refused = await clients['sandbox']?.call('POST', '/api/sandboxes', body);
  t.is(refused?.status, 403);
  t.is(refused?.body.code, 'insufficient_scope');
  const { api: both } = await newKey(api, { scopes: ['disk', 'sandbox'] });
  t.not((await both.call('POST', '/api/sandboxes', body)).status, 403);
});

test('a copy that mounts the disks of its source needs the scope of disks, too', async (t) => {
  const { stack, api } = t.context;
  const disk = await createDisk(api);
  const { accountId } = await readManifest(stack, disk.id);
  const { sandboxes, snapshots } = await stack.openDirectory();
  const mounts = [{ diskId: disk.id, path: '/data', subdirectory: '', readOnly: false }];
  const source = sandboxRecord({ accountId, config: { mounts } });
  await sandboxes.publish(source);
  const { id: sandboxId, hostId, config, rootDiskId, platform, createdAt } = source;
  const network = { egress: { default: 'allow' } } as const;
  const snapshot = { accountId, hostId, config, rootDiskId, platform, createdAt, network };
  await snapshots.publish({
    ...{ ...snapshot, id: newSandboxId(), sandboxId, name: 'mounting', status: 'ready' },
    ...{ hasMemory: false, sizeBytes: 1, revision: 1 },
  });
  const shown = await api.data<Snapshot>('GET', '/api/snapshots/mounting');
  t.deepEqual(shown.mounts, [{ disk_id: disk.id, path: '/data' }]);
  const { api: limited } = await newKey(api, { scopes: ['sandbox'] });
  const { api: both } = await newKey(api, { scopes: ['disk', 'sandbox'] });
  for (const [path, body] of [
    ['/api/sandboxes', { snapshot: 'mounting' }],
    [`/api/sandboxes/${sandboxId}/fork`, {}],
  ] as const) {
    t.is((await limited.call('POST', path, body)).body.code, 'insufficient_scope', path);
    // The host of the source is not there.
    t.is((await both.call('POST', path, body)).status, 503, path);
  }
});

test('a key that may read gets objects and changes none', async (t) => {
  const { stack, api, clients } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo kept > file');
  const send = (key: string, method: string, path: string): Promise<Response> =>
    fetch(`${stack.baseUrl}/${id}${path}`, {
      method,
      headers: { authorization: key },
      ...(method === 'PUT' ? { body: 'changed' } : {}),
    });
  const { read, disk } = clients;
  t.is(await (await send(read?.key ?? '', 'GET', '/file')).text(), 'kept\n');
  for (const [method, path] of [
    ['PUT', '/file'],
    ['DELETE', '/file'],
    ['POST', '?delete'],
    ['POST', '/file?uploads'],
  ] as const) {
    const answer = await send(read?.key ?? '', method, path);
    t.is(answer.status, 403, `${method} ${path}`);
    t.regex(await answer.text(), /AccessDenied.+scope disk/su);
  }
  t.is((await send(disk?.key ?? '', 'PUT', '/file')).status, 200);
});

/** Moves everything that is stored to end at a time into the past. */
async function letPass(redis: Redis, expiresAt: string): Promise<void> {
  const past = new Date(Date.now() - 1).toISOString();
  for (const key of await redis.keys('*')) {
    if ((await redis.type(key)) !== 'hash') continue;
    for (const [field, text] of Object.entries(await redis.hgetall(key))) {
      if (text.includes(expiresAt)) await redis.hset(key, field, text.replace(expiresAt, past));
    }
  }
}

test('a key stops at its end, and so does all that was made with it', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo shared > file');
  const expiresAt = soon(3_600_000);
  const { api: ending, key } = await newKey(api, { expiresAt });
  t.is(key.expiresAt, expiresAt);
  const users = `/api/disks/${id}/users`;
  const user = await ending.data<AuthorizedUser>('POST', users, { type: 'token', nickname: 'n' });
  t.is(user.expiresAt, expiresAt);
  const { authorizedUsers } = await createDisk(ending);
  t.is(authorizedUsers?.[0]?.expiresAt, expiresAt);
  const link = await ending.data<ShareUrl>('POST', `/api/disks/${id}/share`, { key: 'file' });
  t.true(link.expiresIn <= 3_600, 'not a day, as usual');
  const { key: child } = await newKey(ending, { expiresAt: soon(7_200_000) });
  t.is(child.expiresAt, expiresAt);
  const { identifier, token = '' } = user;
  const s3User = { identifier, token, disk: id, s3Url: s3UrlOf(stack) };
  const signed = await presign(s3User, 'GET', 'file');
  t.is((await download(signed)).status, 200);
  t.is((await download(link.url)).status, 200);

  await letPass(await stack.redisClient(), expiresAt);
  const refused = await waitFor('the end to be read', async () => {
    const reply = await ending.call('GET', '/api/disks');
    return reply.status === 401 && reply;
  });
  t.is(refused.body.error, 'the API key has expired');
  t.is((await download(signed)).status, 403);
  t.is((await download(link.url)).status, 403);
  const { tokens } = await api.data<{ tokens: ApiKey[] }>('GET', '/api/tokens');
  t.is(tokens.find((each) => each.id === key.id)?.id, key.id, 'still listed');
});

test('a link ends with the deletion of the key that made it', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo shared > file');
  const { api: other, key } = await newKey(api, { scopes: ['disk'] });
  const { url } = await other.data<ShareUrl>('POST', `/api/disks/${id}/share`, { key: 'file' });
  t.is((await download(url)).status, 200);
  await api.data('DELETE', `/api/tokens/${key.id}`);
  t.is((await download(url)).status, 403);
});

test('an answer that is repeated for its Idempotency-Key is not given to another key', async (t) => {
  const { api } = t.context;
  const body = { name: newName() };
  const headers = { 'idempotency-key': newName() };
  const [first, second] = [
    await newKey(api, { expiresAt: soon(3_600_000) }),
    await newKey(api, { expiresAt: soon(60_000) }),
  ];
  t.is((await first.api.call('POST', '/api/disks', body, headers)).status, 201);
  t.is((await first.api.call('POST', '/api/disks', body, headers)).status, 201);
  const other = await second.api.call('POST', '/api/disks', body, headers);
  t.is(other.body.code, 'idempotency_conflict');
});

for (const [what, body] of Object.entries({
  'no scope at all': { scopes: [] },
  'a scope that there is not': { scopes: ['write'] },
  'the scope of operators': { scopes: ['operator'] },
  'an end that is no time': { expiresAt: 'tomorrow' },
  'an end in half a zone': { expiresAt: '2030-01-01T00:00:00+12' },
})) {
  test(`a key is not made with ${what}`, async (t) => {
    const reply = await t.context.api.call('POST', '/api/tokens', { name: 'n', ...body });
    t.is(reply.status, 400);
    t.is(reply.body.code, 'bad_request');
  });
}

for (const [given, shown] of [
  ['2030-12-31T23:59:60Z', '2030-12-31T23:59:59.000Z'],
  ['2031-01-01t00:59:60.5+01:00', '2030-12-31T23:59:59.500Z'],
  ['9999-12-31T23:59:59.9999-23:59', '9999-12-31T23:59:59.999Z'],
] as const) {
  test(`a key that is to end at ${given} ends at ${shown}`, async (t) => {
    const { key } = await newKey(t.context.api, { expiresAt: given });
    t.is(key.expiresAt, shown);
  });
}

/** Events of calls that change what is there, or that end by themselves. */
const MAKES_NOTHING =
  /_changed$|_revoked$|\.exec|\.(?:started|stopped|paused|resumed)$|\.file_|\.directory_/u;

test('the documented table has all that keys make', async (t) => {
  const document = await readFile(new URL('../../../docs/accounts.md', import.meta.url), 'utf8');
  const [, section = ''] = document.split('### What ends with a key\n');
  const [table = ''] = section.split('## Audit');
  const rows = table.split('\n').filter((line) => line.startsWith('| '));
  const cells = rows.map((row) => row.split('|')[2] ?? '');
  const documented = cells.flatMap((cell) =>
    [...cell.matchAll(/`(\w+)`/gu)].map(([, name = '']) => name),
  );
  const making = routes.filter(
    ({ method, event, scope, operationId }) =>
      operationId === 'watchSandboxFiles' ||
      (['post', 'put'].includes(method) &&
        event !== undefined &&
        !MAKES_NOTHING.test(event) &&
        !['operator', 'public'].includes(scope)),
  );
  const known = new Set(documented.filter((name) => name !== 'ports'));
  const made = new Set(making.map(({ operationId }) => operationId));
  t.deepEqual(
    [...known].filter((name) => !made.has(name)),
    [],
  );
  t.deepEqual(
    [...made].filter((name) => !known.has(name)),
    [],
  );
});
