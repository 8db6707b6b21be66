import { type ExecutionContext } from 'ava';
import { SCHEMA_LIMITS } from '../../../../shared/schemas/limits.ts';
import type { Disk } from '../../../../shared/schemas/disk.ts';
import type { AuthorizedUser } from '../../../../shared/schemas/disk-user.ts';
import { sha256, unseal } from '../../../../shared/secrets.ts';
import { ApiClient } from '../../../helpers/api.ts';
import { createDisk, missingDiskId, newName, readManifest } from '../../../helpers/disks.ts';
import { dumpRedis } from '../../../helpers/redis-contents.ts';
import { type StackContext, stackTest } from '../../../helpers/stack-test.ts';

const test = stackTest();

const addUser = (api: ApiClient, diskId: string, body: object): Promise<AuthorizedUser> =>
  api.data('POST', `/api/disks/${diskId}/users`, body);

const usersOf = async (api: ApiClient, diskId: string): Promise<AuthorizedUser[]> =>
  (await api.data<Disk>('GET', `/api/disks/${diskId}`)).authorizedUsers;

/** The directory's users and those on the storage are the same. */
async function usersEverywhere(
  t: ExecutionContext<StackContext>,
  diskId: string,
): Promise<AuthorizedUser[]> {
  const shown = await usersOf(t.context.api, diskId);
  const kept = await readManifest(t.context.stack, diskId);
  t.deepEqual<unknown, unknown>(
    kept.users.map(({ sealedToken: _, ...user }) => user),
    shown,
  );
  return shown;
}

test('a token user gets a token that is shown once', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  const reply = await api.call<{ data: AuthorizedUser }>('POST', `/api/disks/${id}/users`, {
    type: 'token',
    nickname: 'laptop',
  });
  t.is(reply.status, 201);
  const { token = '', ...user } = reply.body.data;
  t.regex(token, /^dt-[\w-]{43}$/u);
  t.like(user, { type: 'token', nickname: 'laptop', tokenSuffix: token.slice(-4) });
  t.is(user.principal, undefined);
  t.not(user.identifier, token);
  const users = await usersEverywhere(t, id);
  t.deepEqual(
    users.find(({ nickname }) => nickname === 'laptop'),
    user,
  );
  t.is(users.length, 2);
});

test('two token users may have one nickname', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api, { authMethods: [] });
  const [one, two] = await Promise.all(
    [1, 2].map(() => addUser(api, id, { type: 'token', nickname: 'same' })),
  );
  t.not(one?.identifier, two?.identifier);
  t.is((await usersEverywhere(t, id)).length, 2);
});

for (const type of ['cloudsts', 'awssts']) {
  test(`a role user keeps the caller's spelling of its kind: ${type}`, async (t) => {
    const { api } = t.context;
    const { id } = await createDisk(api, { authMethods: [] });
    const principal = 'arn:aws:iam::123456789012:role/a b?&/é';
    const user = await addUser(api, id, { type, principal });
    t.like(user, { type, principal, identifier: principal });
    t.is(user.token, undefined);
    t.is(user.tokenSuffix, undefined);
    t.deepEqual(await usersEverywhere(t, id), [user]);
  });
}

test('a user ends when it is to, and no later than in a year', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api, { authMethods: [] });
  const token = { type: 'token', nickname: 'n' };
  const before = Date.now();
  const brief = await addUser(api, id, { ...token, ttl: '1h30m' });
  const livesMs = Date.parse(brief.expiresAt ?? '') - Date.parse(brief.createdAt);
  t.true(livesMs > 5_399_000 && livesMs <= 5_400_000 + Date.now() - before, `${livesMs} ms`);
  const expiresAt = '2030-01-02T03:04:05.678Z';
  const role = await addUser(api, id, { type: 'cloudsts', principal: 'role', expiresAt });
  t.is(role.expiresAt, expiresAt);
  t.deepEqual(
    (await usersEverywhere(t, id)).map((user) => user.expiresAt),
    [brief.expiresAt, expiresAt],
  );
  for (const end of [
    ...[{ ttl: '4' }, { ttl: '0s' }, { ttl: '8761h' }, { ttl: 60 }, { expiresAt: 'soon' }],
    { ttl: '1h', expiresAt },
  ]) {
    const path = `/api/disks/${id}/users`;
    const reply = await api.call('POST', path, { ...token, ...end });
    t.deepEqual([reply.status, reply.body.code], [400, 'bad_request'], JSON.stringify(end));
  }
});

test('a restriction that no user has is refused, not ignored', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api, { authMethods: [] });
  for (const restriction of [{ readOnly: true }, { oneUse: true }]) {
    const user = { type: 'token', nickname: 'n', ...restriction };
    t.is((await api.call('POST', `/api/disks/${id}/users`, user)).status, 400);
    const disk = { name: newName(), authMethods: [user] };
    t.is((await api.call('POST', '/api/disks', disk)).status, 400);
  }
  await addUser(api, id, { type: 'token', nickname: 'n', readOnly: false, oneUse: false });
  t.is((await usersEverywhere(t, id)).length, 1);
});

test('a disk has each user once, however often it is given', async (t) => {
  const { api } = t.context;
  const principal = 'my-own-secret-token-1234';
  const token = { type: 'token', principal, tokenSuffix: '1234' };
  const { id } = await createDisk(api, {
    authMethods: [
      { ...token, nickname: 'first' },
      { ...token, nickname: 'second' },
      { type: 'awssts', principal },
      { type: 'cloudsts', principal },
    ],
  });
  t.deepEqual((await usersEverywhere(t, id)).map(({ type, nickname }) => nickname ?? type).sort(), [
    'awssts',
    'first',
  ]);
});

test('adding a role user again changes nothing', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api, { authMethods: [] });
  const first = await addUser(api, id, { type: 'cloudsts', principal: 'role' });
  const again = await addUser(api, id, { type: 'awssts', principal: 'role' });
  t.deepEqual(again, first);
  t.deepEqual(await usersEverywhere(t, id), [first]);
});

test('adding a user again sets its end, if the call has one', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api, { authMethods: [] });
  const role = { type: 'cloudsts', principal: 'role' };
  const first = await addUser(api, id, role);
  const expiresAt = '2030-01-02T03:04:05.678Z';
  const limited = await addUser(api, id, { ...role, expiresAt });
  t.deepEqual(limited, { ...first, expiresAt });
  t.deepEqual(await addUser(api, id, role), limited);
  t.deepEqual(await usersEverywhere(t, id), [limited]);
});

test('a user that has ended is added anew', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api, { authMethods: [] });
  const role = { type: 'cloudsts', principal: 'role' };
  await addUser(api, id, { ...role, expiresAt: '2020-01-02T03:04:05.678Z' });
  const again = await addUser(api, id, role);
  t.is(again.expiresAt, undefined);
  t.deepEqual(await usersEverywhere(t, id), [again]);
});

test('a token chosen by the caller is accepted', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api, { authMethods: [] });
  const user = await addUser(api, id, {
    type: 'token',
    nickname: 'own',
    principal: 'my-own-secret-token-1234',
    tokenSuffix: '1234',
  });
  t.is(user.token, 'my-own-secret-token-1234');
  t.is(user.tokenSuffix, '1234');
  t.is((await usersEverywhere(t, id))[0]?.identifier, user.identifier);
});

test('tokens are stored sealed, never as they are', async (t) => {
  const { api, stack } = t.context;
  const disk = await createDisk(api);
  const { id } = disk;
  const made = await addUser(api, id, { type: 'token', nickname: 'made' });
  const chosen = await addUser(api, id, {
    type: 'token',
    nickname: 'chosen',
    principal: 'a-token-of-the-caller-abcd',
    tokenSuffix: 'abcd',
  });
  const tokens = [disk.authorizedUsers[0], made, chosen].map((user) => user?.token ?? '');
  const stored = await dumpRedis(await stack.redisClient());
  const manifest = await readManifest(stack, id);
  t.true(stored.includes(made.identifier));
  for (const token of tokens) {
    t.not(token, '');
    for (const text of [stored, JSON.stringify(manifest)]) {
      t.false(text.includes(token));
      t.false(text.includes(Buffer.from(token).toString('base64').slice(0, -4)));
      t.false(text.includes(sha256(token)));
    }
  }
  const key = Buffer.from(stack.environment['ENCRYPTION_KEY'] ?? '', 'base64');
  t.deepEqual(
    manifest.users.map(({ sealedToken = '' }) => unseal([key], sealedToken, id)).toSorted(),
    tokens.toSorted(),
  );
});

const refused = test.macro({
  async exec(t, body: object, message: RegExp) {
    const { api } = t.context;
    const { id } = await createDisk(api, { authMethods: [] });
    const reply = await api.call('POST', `/api/disks/${id}/users`, body);
    t.is(reply.status, 400);
    t.is(reply.body.code, 'bad_request');
    t.regex(reply.body.error, message);
    t.deepEqual(await usersOf(api, id), []);
    const asMethod = await api.call('POST', '/api/disks', { name: 'no', authMethods: [body] });
    t.is(asMethod.status, 400, 'in authMethods');
  },
  title: (given) => `a user is refused: ${given}`,
});

const longToken = 'a-token-of-the-caller-abcd';
const chosen = (fields: object): object => ({ type: 'token', nickname: 'n', ...fields });

test('no type', refused, { nickname: 'n' }, /type/u);
test('an unknown type', refused, { type: 'gcpsts', principal: 'x' }, /type/u);
test('a token without a nickname', refused, { type: 'token' }, /nickname/u);
test('an empty nickname', refused, { type: 'token', nickname: '' }, /nickname/u);
test('a long nickname', refused, { type: 'token', nickname: 'n'.repeat(256) }, /nickname/u);
test('a role without a principal', refused, { type: 'awssts' }, /principal/u);
test('an empty principal', refused, { type: 'cloudsts', principal: '' }, /principal/u);
test('a long role', refused, { type: 'cloudsts', principal: 'p'.repeat(2049) }, /principal/u);
test('a token without its suffix', refused, chosen({ principal: longToken }), /tokenSuffix/u);
test(
  'a suffix that is not the end of the token',
  refused,
  chosen({ principal: longToken, tokenSuffix: 'abce' }),
  /tokenSuffix/u,
);
test(
  'a suffix of three characters',
  refused,
  chosen({ principal: longToken, tokenSuffix: 'bcd' }),
  /tokenSuffix/u,
);
test(
  'a short token',
  refused,
  chosen({ principal: 'short-token-abc', tokenSuffix: '-abc' }),
  /principal/u,
);
test(
  'a long token',
  refused,
  chosen({ principal: 'a'.repeat(2049), tokenSuffix: 'aaaa' }),
  /principal/u,
);
test(
  'an API key',
  refused,
  chosen({ principal: `key-${'a'.repeat(43)}`, tokenSuffix: 'aaaa' }),
  /API key/u,
);

for (const [name, spell] of [
  ['bare', (token: string) => token],
  ['with Bearer', (token: string) => `Bearer ${token}`],
  ['with the prefix that the client adds', (token: string) => `key-${token}`],
  ['with Bearer and the prefix', (token: string) => `bearer key-${token}`],
] as const) {
  test(`a disk token is no API key: ${name}`, async (t) => {
    const { api, stack } = t.context;
    const disk = await createDisk(api);
    const token = disk.authorizedUsers[0]?.token ?? '';
    const reply = await new ApiClient(stack.baseUrl, '').call('GET', '/api/disks', undefined, {
      authorization: spell(token),
    });
    t.is(reply.status, 401);
    t.regex(reply.body.error, /disk token/u);
  });
}

for (const query of ['identifier', 'principal']) {
  test(`a user is removed by ${query}`, async (t) => {
    const { api } = t.context;
    const { id } = await createDisk(api);
    const role = 'arn:role/x&y';
    const kept = await addUser(api, id, { type: 'cloudsts', principal: 'kept' });
    await addUser(api, id, { type: 'cloudsts', principal: role });
    const token = await addUser(api, id, { type: 'token', nickname: 'n' });
    for (const [type, identifier] of [
      ['cloudsts', role],
      ['token', token.identifier],
    ] as const) {
      const reply = await api.call<{ data: { message: string } }>(
        'DELETE',
        `/api/disks/${id}/users/${type}?${query}=${encodeURIComponent(identifier)}`,
      );
      t.is(reply.status, 200);
      t.is(typeof reply.body.data.message, 'string');
    }
    const users = await usersEverywhere(t, id);
    t.deepEqual(
      users.map((user) => user.nickname ?? user.principal),
      ['default', kept.principal],
    );
  });
}

for (const [added, removed] of [
  ['awssts', 'cloudsts'],
  ['cloudsts', 'awssts'],
]) {
  test(`a user added as ${added} is removed as ${removed}`, async (t) => {
    const { api } = t.context;
    const { id } = await createDisk(api, { authMethods: [{ type: added, principal: 'role' }] });
    const path = `/api/disks/${id}/users/${removed}?identifier=role`;
    t.is((await api.call('DELETE', path)).status, 200);
    t.deepEqual(await usersEverywhere(t, id), []);
  });
}

test('identifier wins over the deprecated principal', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api, {
    authMethods: ['one', 'two'].map((principal) => ({ type: 'cloudsts', principal })),
  });
  await api.data('DELETE', `/api/disks/${id}/users/cloudsts?identifier=one&principal=two`);
  t.deepEqual(
    (await usersEverywhere(t, id)).map((user) => user.principal),
    ['two'],
  );
});

const removalRefused = test.macro({
  async exec(t, suffix: string) {
    const { api } = t.context;
    const { id } = await createDisk(api, {
      authMethods: [{ type: 'cloudsts', principal: 'role' }],
    });
    const reply = await api.call('DELETE', `/api/disks/${id}/users/${suffix}`);
    t.is(reply.status, 400);
    t.is(reply.body.code, 'bad_request');
    t.is((await usersEverywhere(t, id)).length, 1);
  },
  title: (given) => `a removal is refused: ${given}`,
});

test('neither identifier nor principal', removalRefused, 'cloudsts');
test('an empty identifier', removalRefused, 'cloudsts?identifier=');
test('an identifier given twice', removalRefused, 'cloudsts?identifier=role&identifier=role');
test('an unknown user', removalRefused, 'cloudsts?identifier=other');
test('the right identifier with the wrong kind', removalRefused, 'token?identifier=role');
test('an unknown kind', removalRefused, 'gcpsts?identifier=role');

test('a removed user is removed once', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api, { authMethods: [{ type: 'cloudsts', principal: 'role' }] });
  const path = `/api/disks/${id}/users/cloudsts?identifier=role`;
  t.is((await api.call('DELETE', path)).status, 200);
  t.is((await api.call('DELETE', path)).status, 400);
});

test('users of an unknown disk: 404', async (t) => {
  const { api } = t.context;
  const path = `/api/disks/${missingDiskId}/users`;
  const added = await api.call('POST', path, { type: 'token', nickname: 'n' });
  t.is(added.status, 404);
  t.is(added.body.code, 'not_found');
  const removed = await api.call('DELETE', `${path}/token?identifier=x`);
  t.is(removed.status, 404);
  t.is(removed.body.code, 'not_found');
});

test('a disk at its limit of users refuses another', async (t) => {
  const { api } = t.context;
  const authMethods = Array.from({ length: SCHEMA_LIMITS.usersPerDiskMax }, (_, index) => ({
    type: 'cloudsts',
    principal: `role-${index}`,
  }));
  const { id } = await createDisk(api, { authMethods });
  const reply = await api.call('POST', `/api/disks/${id}/users`, { type: 'token', nickname: 'n' });
  t.is(reply.status, 400);
  t.regex(reply.body.error, /too many users/u);
  const more = [...authMethods, { type: 'cloudsts', principal: 'one-more' }];
  t.is((await api.call('POST', '/api/disks', { name: 'x', authMethods: more })).status, 400);
});

test('the manifest has every change when users are added and removed concurrently', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api, {
    authMethods: ['a', 'b', 'c', 'd'].map((principal) => ({ type: 'cloudsts', principal })),
  });
  await Promise.all([
    ...['e', 'f', 'g', 'h'].map((principal) => addUser(api, id, { type: 'cloudsts', principal })),
    ...['a', 'b', 'c', 'd'].map((principal) =>
      api.data('DELETE', `/api/disks/${id}/users/cloudsts?identifier=${principal}`),
    ),
  ]);
  const { users } = await readManifest(t.context.stack, id);
  for (const list of [await usersOf(api, id), users]) {
    t.deepEqual(list.map(({ principal }) => principal ?? '').toSorted(), ['e', 'f', 'g', 'h']);
  }
});
