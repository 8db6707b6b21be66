import { access } from 'node:fs/promises';
import { join } from 'node:path';
import { keys } from '../../../../shared/directory/keys.ts';
import { orderedMember } from '../../../../shared/directory/page.ts';
import { DIRECTORY_LIMITS } from '../../../../shared/directory/limits.ts';
import type { CreatedDisk, Disk } from '../../../../shared/schemas/disk.ts';
import { createDisk, diskFolder, exec, newName, readManifest } from '../../../helpers/disks.ts';
import { stackTest } from '../../../helpers/stack-test.ts';

const test = stackTest();

test('a created disk is complete and usable at once', async (t) => {
  const { api, stack } = t.context;
  const name = newName();
  const { status, body } = await api.call<{ data: CreatedDisk }>('POST', '/api/disks', { name });
  t.is(status, 201);
  const { data } = body;
  t.regex(data.id, /^dsk-[0-9a-f]{16}$/u);
  t.is(data.diskId, data.id);
  t.like(data, {
    name,
    status: 'available',
    provider: 'local',
    region: 'local-test',
    fsHandlerStatus: 'idle',
    mounts: [],
    connectedClients: [],
    allowedIps: [],
    allowedOrigins: [],
  });
  t.regex(data.organization, /^account-/u);
  t.is(new Date(data.createdAt).toISOString(), data.createdAt);
  const [user, ...others] = data.authorizedUsers;
  t.deepEqual(others, []);
  t.like(user, { type: 'token', nickname: 'default' });
  t.regex(user?.token ?? '', /^dt-/u);
  t.is(user?.token?.slice(-4), user?.tokenSuffix);
  await t.notThrowsAsync(access(join(diskFolder(stack, data.id), 'image.ext4')));
  t.like(await readManifest(stack, data.id), { id: data.id, name });
});

test('figures that were never measured are absent', async (t) => {
  const disk = await createDisk(t.context.api);
  for (const field of [
    'dataSize',
    'activeDataBytes',
    'lastAccessed',
    'metrics',
    'monthlyUsage',
    'rootAttrs',
  ]) {
    t.false(Object.hasOwn(disk, field), field);
  }
});

const configuration = {
  allowedIps: ['10.0.0.0/8', '192.0.2.7', '2001:DB8::1'],
  rootAttrs: { uid: 1000, gid: 1000, mode: 0o750 },
};

const sameConfiguration = test.macro({
  async exec(t, first: object, second: object) {
    const { api } = t.context;
    const disk = await createDisk(api, { ...first });
    const reply = await api.call<{ data: CreatedDisk }>('POST', '/api/disks', {
      name: disk.name,
      ...second,
    });
    t.is(reply.status, 200);
    t.is(reply.body.data.id, disk.id);
    t.is(reply.body.data.diskId, disk.id);
    t.true(reply.body.data.authorizedUsers.every((user) => user.token === undefined));
    t.deepEqual(
      reply.body.data.authorizedUsers.map((user) => user.identifier),
      disk.authorizedUsers.map((user) => user.identifier),
    );
  },
  title: (given) => `creating the disk again returns it without a token: ${given}`,
});

test('nothing but the name', sameConfiguration, {}, {});
test('equal fields', sameConfiguration, configuration, configuration);
test('allowedIps in another order and spelling', sameConfiguration, configuration, {
  ...configuration,
  allowedIps: ['2001:db8:0:0::1', '192.0.2.7', '10.0.0.0/8', '192.0.2.7'],
});
test(
  'empty lists instead of none',
  sameConfiguration,
  {},
  { mounts: [], allowedIps: [], allowedOrigins: [], rootAttrs: {} },
);
test(
  'other authMethods',
  sameConfiguration,
  {},
  { authMethods: [{ type: 'awssts', principal: 'arn:role' }] },
);
test('a field that we do not know', sameConfiguration, {}, { colour: 'blue' });

const otherConfiguration = test.macro({
  async exec(t, second: object) {
    const { api } = t.context;
    const disk = await createDisk(api, configuration);
    const reply = await api.call('POST', '/api/disks', { name: disk.name, ...second });
    t.is(reply.status, 409);
    t.is(reply.body.code, 'disk_conflict');
    t.true(reply.body.error.includes(disk.name));
  },
  title: (given) => `creating the disk again with another configuration is refused: ${given}`,
});

test('other addresses', otherConfiguration, { ...configuration, allowedIps: ['10.0.0.0/9'] });
test('no addresses', otherConfiguration, { rootAttrs: configuration.rootAttrs });
test('other origins', otherConfiguration, {
  ...configuration,
  allowedOrigins: ['https://app.example.com'],
});
test('another mode', otherConfiguration, {
  ...configuration,
  rootAttrs: { ...configuration.rootAttrs, mode: 0o700 },
});
test('no rootAttrs', otherConfiguration, { allowedIps: configuration.allowedIps });

const refused = test.macro({
  async exec(t, body: unknown, message: RegExp) {
    const { api } = t.context;
    const reply = await api.call('POST', '/api/disks', body);
    t.is(reply.status, 400);
    t.is(reply.body.code, 'bad_request');
    t.regex(reply.body.error, message);
  },
  title: (given) => `is refused with 400: ${given}`,
});

const named = (input: object): object => ({ name: 'ok', ...input });

test('no name', refused, {}, /'name'/u);
test('an empty name', refused, { name: '' }, /name/u);
test('a name of 101 characters', refused, { name: 'a'.repeat(101) }, /name/u);
test('a name with a space', refused, { name: 'a b' }, /name/u);
test('a name with a slash', refused, { name: '../a' }, /name/u);
test('a name with a line end', refused, { name: 'a\n' }, /name/u);
test('a name with a letter beyond ASCII', refused, { name: 'é' }, /name/u);
test('a name that is a number', refused, { name: 7 }, /name/u);
test('allowedIps that is no list', refused, named({ allowedIps: '10.0.0.1' }), /allowedIps/u);
test(
  'a URL in allowedOrigins',
  refused,
  named({ allowedOrigins: ['https://app.example.com/'] }),
  /allowedOrigins: https:/u,
);
test('a host name in allowedIps', refused, named({ allowedIps: ['host.test'] }), /host\.test/u);
test('a uid below 0', refused, named({ rootAttrs: { uid: -1 } }), /rootAttrs\.uid/u);
test('a gid beyond 32 bits', refused, named({ rootAttrs: { gid: 2 ** 32 } }), /rootAttrs\.gid/u);
test('a uid with a fraction', refused, named({ rootAttrs: { uid: 1.5 } }), /rootAttrs\.uid/u);
test('a set-uid mode', refused, named({ rootAttrs: { mode: 0o4755 } }), /rootAttrs\.mode/u);
test('a mode that is text', refused, named({ rootAttrs: { mode: '755' } }), /rootAttrs\.mode/u);
test('an unknown field of rootAttrs is ignored, like any other', async (t) => {
  const { api } = t.context;
  const name = newName();
  const made = await api.call<{ data: Disk }>('POST', '/api/disks', {
    name,
    rootAttrs: { uid: 7, mod: 493 },
  });
  t.is(made.status, 201);
  t.deepEqual(made.body.data.rootAttrs, { uid: 7 });
  t.is(made.headers.get('x-ignored-fields'), 'rootAttrs.mod');
  const again = await api.call('POST', '/api/disks', { name, rootAttrs: { uid: 7 } });
  t.is(again.status, 200, 'it is the same configuration');
});
test('a mount of half a bucket', refused, named({ mounts: [{ type: 's3' }] }), /bucketName/u);
test('two mounts', refused, named({ mounts: [{ type: 's3' }, { type: 's3' }] }), /mounts/u);
test('a mount without a type', refused, named({ mounts: [{}] }), /mounts/u);
test('an unknown user type', refused, named({ authMethods: [{ type: 'x' }] }), /authMethods/u);
test('a user without fields', refused, named({ authMethods: [{ type: 'token' }] }), /nickname/u);

test('a name of 100 characters and every allowed kind of character is accepted', async (t) => {
  const name = 'aZ09_-'.padEnd(100, 'x');
  t.is((await createDisk(t.context.api, { name })).name, name);
});

test('a refused creation leaves the name free', async (t) => {
  const { api } = t.context;
  const name = newName();
  await api.call('POST', '/api/disks', { name, rootAttrs: { mode: 0o7777 } });
  const found = await api.data<Disk[]>('GET', `/api/disks?name=${name}`);
  t.deepEqual(found, []);
});

const rootOf = test.macro({
  async exec(t, rootAttrs: object | undefined, expected: string) {
    const { api } = t.context;
    const disk = await createDisk(api, rootAttrs === undefined ? {} : { rootAttrs });
    t.deepEqual<unknown, unknown>(disk.rootAttrs, rootAttrs);
    const { stdout, stderr } = await exec(api, disk.id, "stat -c '%u %g %a' . && ls -A");
    t.is(stderr, '');
    t.is(stdout, `${expected}\n`);
  },
  title: (given) => `the root of the disk is empty and has the requested attributes: ${given}`,
});

test('none', rootOf, undefined, '0 0 755');
test('all', rootOf, { uid: 1000, gid: 2000, mode: 0o700 }, '1000 2000 700');
test(
  'the largest',
  rootOf,
  { uid: 4_294_967_294, gid: 4_294_967_294 },
  '4294967294 4294967294 755',
);
test('no permissions', rootOf, { mode: 0 }, '0 0 0');
test('all permissions', rootOf, { mode: 0o777 }, '0 0 777');

test('authMethods replaces the default user', async (t) => {
  const disk = await createDisk(t.context.api, {
    authMethods: [
      { type: 'token', nickname: 'laptop' },
      { type: 'cloudsts', principal: 'role/one' },
      { type: 'awssts', principal: 'role/two' },
    ],
  });
  const users = new Map(disk.authorizedUsers.map((user) => [user.type, user]));
  t.is(users.size, 3);
  t.regex(users.get('token')?.token ?? '', /^dt-/u);
  t.like(users.get('cloudsts'), { principal: 'role/one', identifier: 'role/one' });
  t.like(users.get('awssts'), { principal: 'role/two', identifier: 'role/two' });
});

test('an empty authMethods makes a disk without users', async (t) => {
  const disk = await createDisk(t.context.api, { authMethods: [] });
  t.deepEqual(disk.authorizedUsers, []);
});

test('creating one name many times at once gives one disk and one token', async (t) => {
  const { api } = t.context;
  const name = newName();
  const replies = await Promise.all(
    Array.from({ length: 8 }, () =>
      api.call<{ data: CreatedDisk }>('POST', '/api/disks', { name }),
    ),
  );
  t.is(new Set(replies.map(({ body }) => body.data.id)).size, 1);
  t.true(replies.every(({ status }) => status === 200 || status === 201));
  t.true(replies.some(({ status }) => status === 201));
  const [disk] = await api.data<Disk[]>('GET', `/api/disks?name=${name}`);
  const shown = replies.flatMap(({ body }) => body.data.authorizedUsers);
  t.deepEqual(
    [...new Set(shown.map((user) => user.identifier))],
    [disk?.authorizedUsers[0]?.identifier],
  );
  t.is(new Set(shown.flatMap(({ token }) => token ?? [])).size, 1);
});

test('two accounts may use the same name', async (t) => {
  const { api, stack } = t.context;
  const name = newName();
  const mine = await createDisk(api, { name });
  const theirs = await createDisk(await stack.newClient(), { name });
  t.not(mine.id, theirs.id);
});

test('an account at its limit is told to delete a disk', async (t) => {
  const { stack } = t.context;
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  const redis = await stack.redisClient();
  const { accountId } = await readManifest(stack, id);
  const now = new Date().toISOString();
  const members = Array.from({ length: DIRECTORY_LIMITS.disksPerAccountMax - 1 }, (_, i) => [
    0,
    orderedMember(now, `dsk-${String(i).padStart(16, '0')}`),
  ]);
  await redis.zadd(keys.disks('local-test', accountId), ...(members.flat() as [number, string]));
  const reply = await api.call('POST', '/api/disks', { name: newName() });
  t.is(reply.status, 400);
  t.is(reply.body.code, 'disk_limit_reached');
});
