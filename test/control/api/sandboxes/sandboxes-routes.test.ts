/* Decisions that control makes alone about sandboxes; the host of this stack runs none. */
import anyTest, { type TestFn } from 'ava';
import { randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { paths } from '../../../../agent/system/paths.ts';
import type { Sandboxes } from '../../../../shared/directory/sandboxes.ts';
import { SCHEMA_LIMITS } from '../../../../shared/schemas/limits.ts';
import { sandboxStates } from '../../../../shared/sandbox-lifecycle.ts';
import type { Sandbox } from '../../../../shared/schemas/sandbox.ts';
import type { SandboxRecord } from '../../../../shared/schemas/sandbox-record.ts';
import { ApiClient } from '../../../helpers/api.ts';
import { missingDiskId, newName } from '../../../helpers/disks.ts';
import { sandboxRecord } from '../../../helpers/sandbox-records.ts';
import { Stack } from '../../../helpers/stack.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  accountId: string;
  /** The stack's agent. */
  hostId: string;
  sandboxes: Sandboxes;
}

const test = anyTest as TestFn<Context>;

/** A caller of a new account. */
async function newCaller(stack: Stack): Promise<{ api: ApiClient; accountId: string }> {
  const { accounts, apiKeys } = await stack.openDirectory();
  const account = await accounts.create(newName());
  const { token } = await apiKeys.create(account, { name: 'test' });
  return { api: new ApiClient(stack.baseUrl, token), accountId: account.id };
}

test.before(async (t) => {
  const stack = await Stack.start();
  t.context.stack = stack;
  Object.assign(t.context, await newCaller(stack));
  t.context.sandboxes = (await stack.openDirectory()).sandboxes;
  const dataDir = stack.environment['AGENT_DATA_DIR'] ?? '';
  t.context.hostId = (await readFile(paths.hostId(dataDir), 'utf8')).trim();
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** Publishes a record like its host. */
async function publish(
  { sandboxes, accountId, hostId }: Context,
  changes: Parameters<typeof sandboxRecord>[0] = {},
): Promise<SandboxRecord> {
  const record = sandboxRecord({ accountId, hostId, ...changes });
  await sandboxes.publish(record);
  return record;
}

const show = (body: unknown): string =>
  body === undefined ? 'no body' : JSON.stringify(body).slice(0, 80);

/** Every call on one sandbox. */
const callsOn = (id: string): [method: string, path: string, body?: object][] => {
  const path = `/api/sandboxes/${id}`;
  return [
    ['GET', path],
    ['DELETE', path],
    ['POST', `${path}/start`],
    ['POST', `${path}/stop`],
    ['POST', `${path}/pause`],
    ['POST', `${path}/resume`],
    ['POST', `${path}/fork`],
    ['POST', `${path}/timeout`, { timeout: 3600 }],
    ['PUT', `${path}/network`, {}],
    ['GET', `${path}/network/decisions`],
    ['GET', `${path}/execs`],
    ['POST', `${path}/execs`, { command: 'true' }],
    ['GET', `${path}/execs/${randomUUID()}`],
    ['POST', `${path}/execs/${randomUUID()}/cancel`],
  ];
};

test('the 401 of the creation is plain text, of all others the envelope', async (t) => {
  const { stack } = t.context;
  const create = (key: string) =>
    new ApiClient(stack.baseUrl, key).call<string>('POST', '/api/sandboxes', {});
  t.is((await create('')).body, 'Must provide an Authorization header');
  const wrong = await create('key-wrong');
  t.is(wrong.body, 'Unauthorized');
  t.regex(wrong.headers.get('content-type') ?? '', /^text\/plain/u);
  for (const [method, path, body] of [['GET', '/api/sandboxes'] as const, ...callsOn('x')]) {
    const reply = await new ApiClient(stack.baseUrl, 'key-wrong').call(method, path, body);
    t.is(reply.status, 401);
    t.like(reply.body, { success: false, code: 'unauthorized' });
  }
});

const creation = test.macro({
  async exec(t, body: unknown, status: number, code: string, message?: RegExp) {
    const reply = await t.context.api.call('POST', '/api/sandboxes', body);
    t.like(reply, { status, body: { success: false, code } }, JSON.stringify(reply.body));
    t.regex(reply.body.error, message ?? /./u);
  },
  title: (_given, body: unknown, status: number) => `creation with ${show(body)}: ${status}`,
});

const wrong = (body: unknown, message?: RegExp): void => {
  test(creation, body, 400, 'bad_request', message);
};
/** The request is valid, although no host runs sandboxes. */
const right = (body: unknown): void => test(creation, body, 503, 'not_enabled');

right(undefined);
right({});
right({ name: 'a' });
right({ name: `a${'-'.repeat(61)}9` });
right({ vcpu_count: 32, mem_size_mib: 65_536, max_concurrent_execs: 1024 });
right({ vcpu_count: 1, mem_size_mib: 256, max_concurrent_execs: 1 });
right({ max_ttl_seconds: 60, idle_ttl_seconds: 0 });
right({ max_ttl_seconds: 86_400, idle_ttl_seconds: 86_400 });
right({ mounts: [], ports: [], enable_service_ingress: false });
right({ ports: [80, 65_535], enable_service_ingress: true });
right({ colour: 'blue' });
right({ network: {} });
right({ network: { egress: { default: 'deny', allow: ['*.a.example'], drain_on_pause: ['*'] } } });
right({ network: { egress: { default: 'deny', allow: ['192.0.2.0/24'], deny: ['192.0.2.1'] } } });
right({ env: { A: '', 'a b': 'x=y', '\u00e9': '\n' } });
right({ base_image: 'ubuntu:26.04' });
right({ base_image: 'ubuntu' });
right({ base_image: 'ubuntu:latest' });
right({ base_image: 'debian:12' });
right({ base_image: 'library/debian:12' });
right({ base_image: 'registry.example/library/ubuntu:26.04' });
right({ base_image: 'registry.example:5000/library/debian' });
right({ base_image: 'default' });
right({ base_image: 'debian:bookworm' });
right({ base_image: 'docker.io/ubuntu:26.04' });
right({ base_image: 'docker.io/library/debian' });

wrong('{broken', /JSON/u);
wrong([], /object/u);
wrong({ name: '' }, /name/u);
wrong({ name: 'a'.repeat(64) }, /name/u);
wrong({ name: 'Upper' }, /name/u);
wrong({ name: '-a' }, /name/u);
wrong({ name: 'a-' }, /name/u);
wrong({ name: 'a\n' }, /name/u);
wrong({ name: 'a_b' }, /name/u);
wrong({ name: null }, /name/u);
wrong({ vcpu_count: 0 }, /vcpu_count/u);
wrong({ vcpu_count: 33 }, /vcpu_count/u);
wrong({ vcpu_count: 1.5 }, /vcpu_count/u);
wrong({ vcpu_count: '2' }, /vcpu_count/u);
wrong({ mem_size_mib: 255 }, /mem_size_mib/u);
wrong({ mem_size_mib: 65_537 }, /mem_size_mib/u);
wrong({ max_concurrent_execs: 0 }, /max_concurrent_execs/u);
wrong({ max_concurrent_execs: 1025 }, /max_concurrent_execs/u);
wrong({ max_ttl_seconds: 59 }, /max_ttl_seconds/u);
wrong({ max_ttl_seconds: 86_401 }, /max_ttl_seconds/u);
wrong({ idle_ttl_seconds: -1 }, /idle_ttl_seconds/u);
wrong({ idle_ttl_seconds: 86_401 }, /idle_ttl_seconds/u);
wrong({ env: [] }, /env/u);
wrong({ env: { A: 1 } }, /env/u);
wrong({ env: { '': 'x' } }, /env/u);
wrong({ env: { 'A=B': 'x' } }, /env/u);
wrong({ env: { 'A\0': 'x' } }, /env/u);
wrong({ env: { A: 'x\0' } }, /env/u);
wrong('{"env":{"__proto__":"x"}}');
wrong({ env: { A: '\u00e9'.repeat(SCHEMA_LIMITS.sandboxEnvironmentBytesMax / 2) } }, /env/u);
wrong(
  { env: Object.fromEntries(Array.from({ length: 2049 }, (_, index) => [`A${index}`, ''])) },
  /env .*2048/u,
);
wrong({ base_image: '' }, /base_image/u);
wrong({ base_image: 'UPPER' }, /base_image/u);
wrong({ base_image: '../etc' }, /base_image/u);
wrong({ base_image: 'a b' }, /base_image/u);
wrong({ base_image: 'ubuntu:' }, /base_image/u);
wrong({ base_image: 'a'.repeat(513) }, /base_image/u);
wrong({ base_image: 'ubuntu', image_id: '0'.repeat(64) }, /exclude each other/u);
wrong({ image_id: 'x' }, /image_id/u);
// Not built yet, and so never ignored.
wrong(
  { mounts: [{ disk_id: missingDiskId, path: '/' }] },
  /^mounts\[0\]: path .* root of the sandbox/u,
);
wrong({ network: null }, /network must be object/u);
wrong({ network: { ingress: {} } }, /unknown field "ingress"/u);
wrong({ network: { egress: { default: 'deny', allow: ['256.0.0.1'] } } }, /egress\.allow\.0/u);
wrong({ ports: [0] }, /ports/u);
wrong({ ports: [65_536] }, /ports/u);
wrong({ ports: 80 }, /ports/u);

// A reference that no host has: it would be built.
for (const reference of [
  ...['alpine', 'ubuntu:24.04', `ubuntu@sha256:${'0'.repeat(64)}`, 'registry.example/ubuntu'],
  ...['someone/ubuntu', 'someone/library/ubuntu'],
]) {
  right({ base_image: reference });
}
test(creation, { image_id: '0'.repeat(64) }, 404, 'not_found', /no image 0/u);

test('an environment of exactly the maximum size is accepted', async (t) => {
  const { api } = t.context;
  const env = { A: 'x'.repeat(SCHEMA_LIMITS.sandboxEnvironmentBytesMax - 3) };
  t.is((await api.call('POST', '/api/sandboxes', { env })).body.code, 'not_enabled');
  const more = { A: `${env.A}x` };
  t.is((await api.call('POST', '/api/sandboxes', { env: more })).body.code, 'bad_request');
});

test('where no host runs sandboxes, a creation says not to retry, and leaves nothing', async (t) => {
  const { api, accountId } = await newCaller(t.context.stack);
  const reply = await api.call('POST', '/api/sandboxes?wait=true', { name: 'box' });
  t.is(reply.body.code, 'not_enabled');
  t.is(reply.headers.get('retry-after'), null);
  const list = await api.data('GET', '/api/sandboxes');
  t.deepEqual(list, { sandboxes: [] });
  const redis = await t.context.stack.redisClient();
  t.deepEqual(await redis.keys(`berth:{${accountId}}*sandbox*`), []);
});

const waiting = ['start', 'stop', 'pause', 'resume', 'fork', 'execs'];
test('wait must be true or false', async (t) => {
  const { api } = t.context;
  const { id } = await publish(t.context);
  for (const path of ['', ...waiting.map((call) => `/${id}/${call}`)]) {
    for (const query of ['wait=1', 'wait=', 'wait=yes', 'wait=true&wait=true']) {
      const body = { command: 'true' };
      const reply = await api.call('POST', `/api/sandboxes${path}?${query}`, body);
      t.is(reply.body.code, 'bad_request', `${path}?${query}`);
    }
  }
});

test('a sandbox is shown as its host published it', async (t) => {
  const { api } = t.context;
  const record = await publish(t.context, {
    state: 'pending_resume',
    createdAt: '2026-11-21T12:00:00Z',
    lastActiveAt: '2026-11-21T12:00:01.5Z',
    checkpoint: 'not from here on',
    config: {
      name: 'shown',
      vcpuCount: 2,
      memSizeMib: 512,
      maxTtlSeconds: 3600,
      idleTtlSeconds: 60,
      baseImage: 'library/debian',
      image: { name: 'debian', version: '12', codename: 'bookworm', key: '0a1b' },
    },
    network: { egress: { default: 'deny' } },
    expiresAt: '2026-11-21T13:00:00Z',
  });
  t.deepEqual(await api.data<Sandbox>('GET', `/api/sandboxes/${record.id}`), {
    sandbox_id: record.id,
    name: 'shown',
    status: 'pending',
    vcpu_count: 2,
    mem_size_mib: 512,
    max_ttl_seconds: 3600,
    idle_ttl_seconds: 60,
    max_concurrent_execs: 32,
    enable_service_ingress: false,
    base_image: 'library/debian',
    image: { name: 'debian', version: '12', key: '0a1b' },
    root_disk_id: record.rootDiskId,
    mounts: [],
    created_at: '2026-11-21T12:00:00.000Z',
    last_active_at: '2026-11-21T12:00:01.500Z',
    platform: 'amd64',
    endpoints: [],
    network: { egress: { default: 'deny' } },
    expires_at: '2026-11-21T13:00:00.000Z',
  });
});

test('a sandbox shows its checkpoint while pausing, paused, stopping and stopped', async (t) => {
  const { api } = t.context;
  for (const state of sandboxStates) {
    const { id } = await publish(t.context, { state, checkpoint: 'a-checkpoint' });
    const { checkpoint } = await api.data<Sandbox>('GET', `/api/sandboxes/${id}`);
    const isShown = ['draining', 'pausing', 'paused', 'stopping', 'stopped'].includes(state);
    t.is(checkpoint, isShown ? 'a-checkpoint' : undefined, state);
  }
});

test('a sandbox that has ended shows when and why', async (t) => {
  const { api } = t.context;
  const { id } = await publish(t.context, {
    state: 'failed',
    runningAt: '2026-11-21T12:00:01.000Z',
    finishedAt: '2026-11-21T12:00:02.000Z',
    exitReason: 'guest_panic',
    exitMessage: 'the kernel of the guest panicked',
  });
  t.like(await api.data<Sandbox>('GET', `/api/sandboxes/${id}`), {
    status: 'failed',
    running_at: '2026-11-21T12:00:01.000Z',
    finished_at: '2026-11-21T12:00:02.000Z',
    exit_reason: 'guest_panic',
    exit_message: 'the kernel of the guest panicked',
  });
});

test("the list holds the account's sandboxes, oldest first; filtered by file system it is empty", async (t) => {
  const { api, accountId } = await newCaller(t.context.stack);
  const context = { ...t.context, accountId };
  const [second, first] = [
    await publish(context, { createdAt: '2026-11-21T12:00:02.000Z', state: 'running' }),
    await publish(context, { createdAt: '2026-11-21T12:00:01.000Z', state: 'exited' }),
  ];
  const { sandboxes } = await api.data<{ sandboxes: Sandbox[] }>('GET', '/api/sandboxes');
  t.deepEqual(
    sandboxes.map(({ sandbox_id: id }) => id),
    [first.id, second.id],
  );
  const filtered = await api.data('GET', `/api/sandboxes?filesystem=${missingDiskId}`);
  t.deepEqual(filtered, { sandboxes: [] });
  for (const value of ['', 'x', 'dsk-0123456789ABCDEF', `${missingDiskId}0`]) {
    const reply = await api.call('GET', `/api/sandboxes?filesystem=${value}`);
    t.is(reply.body.code, 'bad_request', value);
  }
});

test("the list can be of one name, and never finds another account's", async (t) => {
  const { api, accountId } = await newCaller(t.context.stack);
  const context = { ...t.context, accountId };
  const [one] = [await publish(context, {}), await publish(context, {})];
  const list = async (query: string): Promise<string[]> => {
    const path = `/api/sandboxes?${query}`;
    const { sandboxes } = await api.data<{ sandboxes: Sandbox[] }>('GET', path);
    return sandboxes.map(({ sandbox_id: id }) => id);
  };
  const { name } = one.config;
  t.deepEqual(await list(`name=${name}`), [one.id]);
  t.deepEqual(await list(`name=${name.slice(0, -1)}`), []);
  t.deepEqual(await list('name=Not%20a%20name'), []);
  t.deepEqual(await list(`name=${name}&filesystem=${missingDiskId}`), []);
  const { sandboxes } = await t.context.api.data<{ sandboxes: Sandbox[] }>(
    'GET',
    `/api/sandboxes?name=${name}`,
  );
  t.deepEqual(sandboxes, []);
  for (const value of ['', 'x'.repeat(101), 'a&name=b']) {
    t.is((await api.call('GET', `/api/sandboxes?name=${value}`)).body.code, 'bad_request', value);
  }
});

test('missing, malformed and other accounts’ sandboxes answer alike', async (t) => {
  const { stack, api } = t.context;
  const theirs = await publish({ ...t.context, accountId: (await newCaller(stack)).accountId });
  const malformed = ['x', '00000000', `${theirs.id}0`, '..%2f..', 'a%00b'];
  for (const id of [theirs.id, randomUUID(), ...malformed]) {
    for (const [method, path, body] of callsOn(id)) {
      const reply = await api.call(method, path, body);
      t.like(reply, { status: 404, body: { code: 'not_found' } }, `${method} ${path}`);
      t.is(reply.body.error, `sandbox ${decodeURIComponent(id)} not found`);
    }
  }
});

test('a malformed exec id answers like a missing one', async (t) => {
  const { api } = t.context;
  const { id } = await publish(t.context);
  for (const execId of ['x', '..%2f..']) {
    const path = `/api/sandboxes/${id}/execs/${execId}`;
    t.is((await api.call('GET', path)).body.code, 'not_found');
    t.is((await api.call('POST', `${path}/cancel`)).body.code, 'not_found');
  }
});

test('a cursor that no page of files was answered with is refused', async (t) => {
  const { api } = t.context;
  const { id } = await publish(t.context);
  const list = `/api/sandboxes/${id}/files/list?path=/tmp`;
  const encoded = ['../a', 'a//b', '/a', 'a/', './a', 'a\0'].map((text) =>
    Buffer.from(text).toString('base64url'),
  );
  for (const cursor of ['zz', 'YQ%3D%3D', 'a.b', ...encoded]) {
    const { status, body } = await api.call('GET', `${list}&cursor=${cursor}`);
    t.deepEqual([status, body.code], [400, 'bad_request'], cursor);
  }
  const known = Buffer.from('dir/notes.txt').toString('base64url');
  t.not((await api.call('GET', `${list}&cursor=${known}`)).status, 400);
});

test('an id in upper case is the same id', async (t) => {
  const { api } = t.context;
  const { id } = await publish(t.context);
  const shown = await api.data<Sandbox>('GET', `/api/sandboxes/${id.toUpperCase()}`);
  t.is(shown.sandbox_id, id);
  for (const [method, path, body] of callsOn(id.toUpperCase()).slice(1)) {
    const reply = await api.call(method, path, body);
    t.is(reply.body.code, 'not_enabled', `${method} ${path}: the host was asked`);
  }
  const execId = randomUUID();
  const path = `/api/sandboxes/${id}/execs/${execId.toUpperCase()}`;
  t.is((await api.call('GET', path)).body.code, 'not_enabled');
});

test('a sandbox whose host is away can be read; actions answer 503', async (t) => {
  const { api } = t.context;
  const away = await publish(t.context, { hostId: sandboxRecord().hostId });
  for (const [method, path, body] of callsOn(away.id).slice(1)) {
    const reply = await api.call(method, path, body);
    const code = /(start|resume|fork)$/u.test(path) ? 'runtime_retryable' : 'unavailable';
    t.like(reply, { status: 503, body: { code } }, `${method} ${path}`);
    t.regex(reply.body.error, /host .* is away/u);
    t.is(reply.headers.get('retry-after'), '2');
  }
  for (const path of ['', '/network']) {
    t.is((await api.call('GET', `/api/sandboxes/${away.id}${path}`)).status, 200);
  }
});

test('a refusal by the host reaches the caller', async (t) => {
  const { api } = t.context;
  const { id } = await publish(t.context);
  for (const [method, path, body] of callsOn(id).slice(1)) {
    const reply = await api.call(method, path, body);
    t.like(reply, { status: 503, body: { code: 'not_enabled' } }, `${method} ${path}`);
  }
  t.is((await api.call('GET', `/api/sandboxes/${id}`)).status, 200, 'nothing was deleted');
});

test('a start with a disk that is not there is refused', async (t) => {
  const { api } = t.context;
  const { id } = await publish(t.context);
  const mounts = [{ disk_id: missingDiskId, path: '/mnt' }];
  const refused = await api.call('POST', `/api/sandboxes/${id}/start`, { mounts });
  t.is(refused.status, 404);
  t.regex(refused.body.error, /^mounts\[0\]: disk .*not found/u);
  for (const body of [undefined, {}, { mounts: [] }]) {
    const reply = await api.call('POST', `/api/sandboxes/${id}/start`, body);
    t.is(reply.body.code, 'not_enabled');
  }
});

const wrongForks: [body: unknown, message: RegExp][] = [
  ['{broken', /JSON/u],
  [[], /object/u],
  [{ name: '' }, /name/u],
  [{ name: 'a'.repeat(64) }, /name/u],
  [{ name: 'Upper' }, /name/u],
  [{ name: null }, /name/u],
  [{ checkpoint: '' }, /checkpoint/u],
  [{ checkpoint: 'c'.repeat(SCHEMA_LIMITS.sandboxCheckpointLengthMax + 1) }, /checkpoint/u],
  [{ checkpoint: 7 }, /checkpoint/u],
];
test('a fork is checked before it is sent', async (t) => {
  const { api } = t.context;
  const { id } = await publish(t.context);
  for (const [body, message] of wrongForks) {
    const reply = await api.call('POST', `/api/sandboxes/${id}/fork`, body);
    t.is(reply.body.code, 'bad_request', message.source);
    t.regex(reply.body.error, message);
  }
  const checkpoint = 'c'.repeat(SCHEMA_LIMITS.sandboxCheckpointLengthMax);
  for (const body of [undefined, {}, { name: 'a' }, { checkpoint }, { colour: 'blue' }]) {
    const reply = await api.call('POST', `/api/sandboxes/${id}/fork`, body);
    t.is(reply.body.code, 'not_enabled');
  }
});

const wrongTimeouts: [body: unknown, message: RegExp][] = [
  [undefined, /timeout/u],
  [{}, /give timeout, idle_ttl_seconds/u],
  [{ max_ttl_seconds: 3600 }, /give timeout, idle_ttl_seconds/u],
  [{ timeout: 59 }, /timeout/u],
  [{ timeout: 86_401 }, /timeout/u],
  [{ timeout: 60.5 }, /timeout/u],
  [{ timeout: '60' }, /timeout/u],
  [{ timeout: null }, /timeout/u],
  [{ timeout: 3600, idle_ttl_seconds: -1 }, /idle_ttl_seconds/u],
  [{ idle_ttl_seconds: 86_401 }, /idle_ttl_seconds/u],
  [{ idle_ttl_seconds: '0' }, /idle_ttl_seconds/u],
];
test('time limits are checked before they are sent', async (t) => {
  const { api } = t.context;
  const { id } = await publish(t.context);
  for (const [body, message] of wrongTimeouts) {
    const reply = await api.call('POST', `/api/sandboxes/${id}/timeout`, body);
    t.is(reply.body.code, 'bad_request', message.source);
    t.regex(reply.body.error, message);
  }
  for (const body of [{ timeout: 60 }, { timeout: 86_400, idle_ttl_seconds: 86_400 }]) {
    const reply = await api.call('POST', `/api/sandboxes/${id}/timeout`, body);
    t.is(reply.body.code, 'not_enabled');
  }
});

const wrongExecs: [body: unknown, message: RegExp][] = [
  [undefined, /command/u],
  [{}, /command/u],
  [{ command: '' }, /command/u],
  [{ command: 7 }, /command/u],
  [{ command: 'a\0b' }, /command/u],
  [{ command: '\u00e9'.repeat(SCHEMA_LIMITS.commandBytesMax / 2 + 1) }, /command/u],
  [{ command: 'true', command_tty: 'yes' }, /command_tty/u],
  [{ command: 'true', env: { 'A=': '' } }, /env/u],
  [{ command: 'true', timeout_seconds: 0 }, /timeout_seconds/u],
  [{ command: 'true', timeout_seconds: 1.5 }, /timeout_seconds/u],
  [{ command: 'true', timeout_seconds: 86_401 }, /timeout_seconds/u],
];
test('a command is checked before it is sent', async (t) => {
  const { api } = t.context;
  const { id } = await publish(t.context);
  for (const [body, message] of wrongExecs) {
    const reply = await api.call('POST', `/api/sandboxes/${id}/execs`, body);
    t.is(reply.body.code, 'bad_request', message.source);
    t.regex(reply.body.error, message);
  }
});

test('a key of a refused creation is free again', async (t) => {
  const { api } = t.context;
  const { id } = await publish(t.context);
  for (const path of ['/api/sandboxes', `/api/sandboxes/${id}/fork`]) {
    const headers = { 'idempotency-key': newName() };
    for (const body of [{ name: 'Wrong' }, { name: 'right' }, { name: 'other' }]) {
      const reply = await api.call('POST', path, body, headers);
      t.is(reply.body.code, body.name === 'Wrong' ? 'bad_request' : 'not_enabled');
    }
  }
});
