import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { execFile } from 'node:child_process';
import { readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ApiKey } from '../../shared/schemas/api-key.ts';
import type { Disk } from '../../shared/schemas/disk.ts';
import { ApiClient } from '../helpers/api.ts';
import { createDisk, diskFolder, exec, newName, readManifest } from '../helpers/disks.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack }>;

test.before(async (t) => {
  t.context.stack = await Stack.start({ REGION_PREVIEW: 'true' });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

// The program behind scripts/admin: the script itself takes the settings of the machine's own
// stack, when there is one, before those of the test's.
const program = new URL('../../scripts/admin.ts', import.meta.url).pathname;

interface Run {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

const runWith = (env: Record<string, string>, words: readonly string[]): Promise<Run> =>
  new Promise((resolve) => {
    execFile(process.execPath, [program, ...words], { env }, (error, stdout, stderr) => {
      resolve({ code: typeof error?.code === 'number' ? error.code : 0, stdout, stderr });
    });
  });

/** Control nodes remember keys for a second (docs/decisions/0099). */
const untilRefused = (api: ApiClient): Promise<true> =>
  waitFor('the key to be refused', async () => {
    return (await api.call('GET', '/api/disks')).status === 401;
  });

/** Output of a command that must succeed. */
async function admin<T>(t: ExecutionContext<{ stack: Stack }>, ...words: string[]): Promise<T> {
  const { code, stdout, stderr } = await runWith(t.context.stack.environment, words);
  t.is(code, 0, stderr);
  t.is(stderr, '');
  return JSON.parse(stdout) as T;
}

test('settings are listed without a cluster', async (t) => {
  const { code, stdout } = await runWith({}, ['--json', 'settings']);
  t.is(code, 0);
  const parts = JSON.parse(stdout) as Record<string, { name: string }[]>;
  t.deepEqual(parts['Scripts']?.[0], {
    name: 'REDIS_PORT',
    value: 'port',
    default: 'required; set-up: 8720',
    meaning: 'Redis of this checkout',
  });
  t.true(
    Object.values(parts)
      .flat()
      .some(({ name }) => name === 'STORAGE_DIR'),
  );
});

test.serial('an account, its keys and its regions, from nothing', async (t) => {
  const { stack } = t.context;
  const account = await admin<{ id: string; name: string }>(t, 'account', 'create', 'acme');
  t.regex(account.id, /^acct-[0-9a-f]{16}$/u);
  const { accounts } = await admin<{ accounts: { name: string }[] }>(t, 'account', 'list');
  t.true(accounts.some(({ name }) => name === 'acme'));

  type Key = ApiKey & { token: string };
  const first = await admin<Key>(t, 'key', 'create', 'acme', '--name', 'laptop');
  const second = await admin<Key>(t, 'key', 'create', account.id, '--json');
  const { keys } = await admin<{ keys: ApiKey[] }>(t, 'key', 'list', 'acme');
  t.deepEqual(
    keys.map(({ id, name }) => [id, name]),
    [
      [first.id, 'laptop'],
      [second.id, 'default'],
    ],
  );
  t.false(JSON.stringify(keys).includes(first.token));

  const api = new ApiClient(stack.baseUrl, first.token);
  t.is((await api.call('POST', '/api/disks', { name: 'one' })).status, 403);
  await admin(t, 'account', 'allow-region', 'acme', 'local-test');
  t.is((await createDisk(api, { name: 'one' })).organization, 'acme');
  await admin(t, 'account', 'deny-region', account.id, 'local-test');
  t.is((await api.call('POST', '/api/disks', { name: 'two' })).status, 403);

  await admin(t, 'key', 'delete', 'acme', first.id);
  await untilRefused(api);
  t.is((await api.withKey(second.token).call('GET', '/api/disks')).status, 200);
});

test.serial('backup, an emptied Redis, restore and rebuild: everything is back', async (t) => {
  const { stack } = t.context;
  const file = join(stack.directory, 'backup.json');
  await admin(t, 'account', 'create', 'lost');
  await admin(t, 'account', 'allow-region', 'lost', 'local-test');
  const { token } = await admin<{ token: string }>(t, 'key', 'create', 'lost');
  const api = new ApiClient(stack.baseUrl, token);
  const disk = await createDisk(api, { allowedIps: ['10.0.0.1'], rootAttrs: { mode: 0o750 } });
  const { id } = disk;
  await exec(api, id, 'echo old data > file');
  await api.data('POST', `/api/disks/${id}/users`, { type: 'awssts', principal: 'role' });
  await api.data('PUT', `/api/disks/${id}/allowed-ips`, { allowedIps: ['192.0.2.0/24'] });
  const allowedOrigins = ['https://app.example.com'];
  await api.data('PUT', `/api/disks/${id}/allowed-origins`, { allowedOrigins });
  const other = await createDisk(api);
  const gone = await createDisk(api);
  await api.call('DELETE', `/api/disks/${gone.id}`);
  const before = await api.data<Disk>('GET', `/api/disks/${id}`);

  await admin(t, 'backup', file);
  t.is((await stat(file)).mode & 0o777, 0o600);
  t.false((await readFile(file, 'utf8')).includes(token), 'keys are in it as hashes only');
  await (await stack.redisClient()).flushall();
  await untilRefused(api);

  const empty = await runWith(stack.environment, ['backup', file]);
  t.is(empty.code, 1, 'the only copy is not replaced by nothing');
  t.regex(empty.stderr, /^admin: there are no accounts, and .* has some: it stays/u);
  await admin(t, 'restore', file);
  t.deepEqual(await api.data<Disk[]>('GET', '/api/disks'), []);
  const rebuilt = await admin<{ restored: string[]; failed: object[] }>(t, 'rebuild');
  t.true(rebuilt.restored.includes(id) && rebuilt.restored.includes(other.id));
  t.false(rebuilt.restored.includes(gone.id));
  t.deepEqual(rebuilt.failed, []);

  const after = await api.data<Disk>('GET', `/api/disks/${id}`);
  for (const field of [
    'id',
    'name',
    'organization',
    'createdAt',
    'status',
    'allowedIps',
    'allowedOrigins',
    'rootAttrs',
    'authorizedUsers',
  ] as const) {
    t.deepEqual(after[field], before[field], field);
  }
  await waitFor('a command to run', async () => {
    const reply = await api.call('POST', `/api/disks/${id}/exec`, { command: 'true' });
    return reply.status === 200;
  });
  t.is((await exec(api, id, 'cat file; stat -c %a .')).stdout, 'old data\n750\n');
  t.is((await createDisk(api)).status, 'available', 'and the account still has its region');
  t.is((await api.call('POST', '/api/disks', { name: disk.name })).status, 409);

  const again = await admin<{ restored: string[]; present: string[] }>(t, 'rebuild');
  t.deepEqual(again.restored, []);
  t.true(again.present.includes(id));
  await admin(t, 'restore', file);
  t.is((await api.call('GET', '/api/disks')).status, 200, 'restoring again does no harm');
});

test.serial('a rebuild says which disk it could not list, and lists the others', async (t) => {
  const { stack } = t.context;
  await admin(t, 'account', 'create', 'careful');
  await admin(t, 'account', 'allow-region', 'careful', 'local-test');
  const { token } = await admin<{ token: string }>(t, 'key', 'create', 'careful');
  const api = new ApiClient(stack.baseUrl, token);
  const broken = await createDisk(api);
  const whole = await createDisk(api);
  const { accountId } = await readManifest(stack, whole.id);
  const directory = await stack.openDirectory();
  for (const { id } of [broken, whole]) {
    const entry = await directory.disks.get(accountId, id);
    if (entry === undefined) throw new Error('no disk');
    await directory.disks.beginDelete(entry.record);
    await directory.disks.remove(entry.record);
  }
  const path = join(diskFolder(stack, broken.id), 'manifest.json');
  const text = await readFile(path, 'utf8');
  await writeFile(path, text.slice(0, -10));
  const { code, stdout } = await runWith(stack.environment, ['rebuild']);
  t.is(code, 1);
  const first = JSON.parse(stdout) as { restored: string[]; failed: { disk: string }[] };
  t.deepEqual(first.restored, [whole.id]);
  t.deepEqual(
    first.failed.map(({ disk }) => disk),
    [broken.id],
  );
  await writeFile(path, text);
  const second = await admin<{ restored: string[]; failed: object[] }>(t, 'rebuild');
  t.deepEqual(second.restored, [broken.id]);
  t.deepEqual(second.failed, []);
});

test.serial('limits are set, shown, and taken away', async (t) => {
  await admin(t, 'account', 'create', 'bounded');
  const limits = async (...changes: string[]): Promise<object> =>
    (await admin<{ limits: object }>(t, 'account', 'limits', 'bounded', ...changes)).limits;
  t.deepEqual(await limits('--disks', '0', '--vcpus', '8'), { disks: 0, vcpus: 8 });
  t.deepEqual(await limits('--disks', 'none'), { vcpus: 8 });
  await admin(t, 'account', 'allow-region', 'bounded', 'local-test');
  const { token } = await admin<{ token: string }>(t, 'key', 'create', 'bounded');
  await createDisk(new ApiClient(t.context.stack.baseUrl, token));
});

const refused = test.macro({
  async exec(t, words: string[], message: RegExp, changes: Record<string, string> = {}) {
    const { stack } = t.context;
    const env = { ...stack.environment, ...changes };
    const places = words.map((word) => word.replace('DIR', stack.directory));
    const { code, stdout, stderr } = await runWith(env, places);
    t.is(code, 1);
    t.is(stdout, '');
    const [line = '', next, ...rest] = stderr.split('\n');
    t.regex(line, message);
    t.is(next, '');
    // After one line, at most the help of the command.
    t.true(rest.length === 0 || rest[0]?.startsWith('Usage: '), stderr);
    t.notRegex(stderr, /^\s+at /mu);
  },
  title: (given, words: string[]) =>
    `refused with one line: ${given ?? ['admin', ...words].join(' ')}`,
});

test(refused, [], /^admin: unknown command$/u);
test(refused, ['account'], /^admin: unknown command$/u);
test(refused, ['account', 'rename'], /^admin: unknown command 'rename'$/u);
test(refused, ['account', 'list', 'all'], /^admin: too many arguments/u);
test(refused, ['account', 'create', 'a b'], /^admin: an account name has/u);
test(refused, ['account', 'allow-region', 'acme', 'mars'], /^admin: a region is written/u);
test(
  refused,
  ['account', 'allow-region', 'nobody', 'aws-us-east-1'],
  /^admin: there is no account nobody/u,
);
test(refused, ['key', 'create', 'nobody'], /^admin: there is no account nobody/u);
test(refused, ['backup'], /^admin: missing required argument 'file'$/u);
test(refused, ['backup', 'DIR/none/backup.json'], /^admin: .*ENOENT.*none/u);
test(refused, ['restore', 'DIR/none.json'], /^admin: .*ENOENT.*none\.json/u);
test(refused, ['account', 'list', '--nonsense'], /^admin: .*--nonsense/u);
test('without Redis', refused, ['account', 'list', '--json'], /^admin: ./u, {
  REDIS_URL: 'redis://127.0.0.1:1',
});
test('in no region', refused, ['rebuild'], /^admin: configuration: REGION does not match/u, {
  REGION: 'mars',
});

test('an account or a key is not made or deleted twice', async (t) => {
  const { stack } = t.context;
  const name = newName();
  await admin(t, 'account', 'create', name);
  const twice = await runWith(stack.environment, ['account', 'create', name]);
  t.is(twice.code, 1);
  t.is(twice.stderr, `admin: an account named ${name} exists\n`);
  const { id } = await admin<{ id: string }>(t, 'key', 'create', name);
  await admin(t, 'key', 'delete', name, id);
  const again = await runWith(stack.environment, ['key', 'delete', name, id]);
  t.is(again.code, 1);
  t.regex(again.stderr, /^admin: the account has no such key/u);
});

for (const [name, text] of Object.entries({
  'no JSON': 'not JSON',
  'another version': '{"version":2,"accounts":[],"keys":[]}',
  'an account without an id': '{"version":1,"accounts":[{"name":"x"}],"keys":[]}',
})) {
  test(`a backup that is none is refused: ${name}`, async (t) => {
    const { stack } = t.context;
    const file = join(stack.directory, `${newName()}.json`);
    await writeFile(file, text);
    const { code, stderr } = await runWith(stack.environment, ['restore', file]);
    t.is(code, 1);
    t.regex(stderr, /^admin: [^\n]+\n$/u);
  });
}

const COMMANDS: Readonly<Record<string, RegExp>> = {
  'account create': /<name>/u,
  'account list': /--json/u,
  'account allow-region': /<account> <region>/u,
  'account deny-region': /<account> <region>/u,
  'key create': /<account>[^]+--name <name>/u,
  'key list': /<account>/u,
  'key delete': /<account> <key-id>/u,
  backup: /<file>/u,
  restore: /<file>/u,
  rebuild: /--json/u,
};

test('help names every command', async (t) => {
  const { code, stdout, stderr } = await runWith({}, ['--help']);
  t.is(code, 0);
  t.is(stderr, '');
  for (const words of Object.keys(COMMANDS)) t.regex(stdout, new RegExp(`^  ${words}`, 'mu'));
});

for (const [words, usage] of [
  ['account create a!', /^admin: an account name has .*\n\nUsage: scripts\/admin account create /u],
  ['backup', /^admin: missing .*\n\nUsage: scripts\/admin backup /u],
  ['account --json frob', /^admin: unknown .*\n\nUsage: scripts\/admin account /u],
  ['frob', /^admin: unknown .*\n\nUsage: scripts\/admin \[options\]/u],
] as const) {
  test(`a mistake is answered with the help of its own command: ${words}`, async (t) => {
    t.regex((await runWith({}, words.split(' '))).stderr, usage);
  });
}

for (const [words, shown] of Object.entries(COMMANDS)) {
  test(`help explains the arguments of ${words}`, async (t) => {
    const { code, stdout, stderr } = await runWith({}, [...words.split(' '), '--help']);
    t.is(code, 0);
    t.is(stderr, '');
    t.true(stdout.startsWith(`Usage: scripts/admin ${words} `), stdout);
    t.regex(stdout, shown);
  });
}

test.serial('the hold of a dead host is broken, that of a live one is not', async (t) => {
  const { stack } = t.context;
  const { accounts, apiKeys, diskLeases } = await stack.openDirectory();
  const account = await accounts.create(newName());
  await accounts.setRegionAccess(account.id, 'local-test', true);
  const { token } = await apiKeys.create(account, { name: 'test' });
  const api = new ApiClient(stack.baseUrl, token);
  const disk = { accountId: account.id, diskId: (await createDisk(api)).id };
  const words = ['disk', 'break-hold', account.name, disk.diskId];
  const idle = await runWith(stack.environment, words);
  t.deepEqual([idle.code, idle.stdout], [1, '']);
  t.regex(idle.stderr, /no sandbox holds disk/u);

  await exec(api, disk.diskId, 'true');
  const redis = await stack.redisClient();
  const [key = ''] = await redis.keys(`*:disk:${disk.diskId}:lease`);
  const ofLive = (await redis.get(key)) ?? '';
  await redis.set(key, `${ofLive} held`);
  const live = await runWith(stack.environment, words);
  t.is(live.code, 1);
  t.regex(live.stderr, /announced itself seconds ago/u);
  t.is(await redis.get(key), `${ofLive} held`);
  await redis.set(key, ofLive, 'PX', 60_000);

  const other = { accountId: account.id, diskId: (await createDisk(api)).id };
  await waitFor('the host to let go of the disk', async () => {
    const lease = await diskLeases.acquire(other, 'host-dead00000000', 60_000);
    return 'epoch' in lease && (await diskLeases.hold(lease)) === 'held';
  });
  const path = `/api/disks/${other.diskId}/exec`;
  const held = await api.call('POST', path, { command: 'true' });
  t.deepEqual([held.status, held.body.code], [409, 'disk_in_use']);
  const freed = await admin<object>(t, 'disk', 'break-hold', account.id, other.diskId);
  t.deepEqual(freed, { disk: other.diskId, freedFrom: 'host-dead00000000' });
  t.is((await api.call('POST', path, { command: 'true' })).status, 200);
});
