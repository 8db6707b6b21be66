import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { randomBytes } from 'node:crypto';
import { connectionUrl } from '../../../../control/api/sandboxes/connect-sandbox.ts';
import { newSandboxId } from '../../../../shared/ids.ts';
import { LIMITS } from '../../../../shared/limits.ts';
import { sandboxStates, statusOfState } from '../../../../shared/sandbox-lifecycle.ts';
import type {
  NamedSandboxConnection,
  SandboxConnection,
} from '../../../../shared/schemas/sandbox.ts';
import type { SandboxRecord } from '../../../../shared/schemas/sandbox-record.ts';
import { ApiClient } from '../../../helpers/api.ts';
import { newName } from '../../../helpers/disks.ts';
import { sandboxRecord } from '../../../helpers/sandbox-records.ts';
import { ScriptedHost } from '../../../helpers/scripted-host.ts';
import { Stack } from '../../../helpers/stack.ts';
import { waitFor } from '../../../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack }>;

test.before(async (t) => {
  t.context.stack = await Stack.start();
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

interface Owned {
  readonly api: ApiClient;
  readonly host: ScriptedHost;
  readonly sandbox: SandboxRecord;
  readonly path: string;
}

/** A sandbox of a new account, on a host of its own. */
async function newSandbox(
  t: ExecutionContext<{ stack: Stack }>,
  { state = 'running' }: { readonly state?: SandboxRecord['state'] } = {},
): Promise<Owned> {
  const { stack } = t.context;
  const { accounts, apiKeys, sandboxes } = await stack.openDirectory();
  const account = await accounts.create(newName());
  const { token } = await apiKeys.create(account, { name: 'test' });
  const host = await ScriptedHost.link(stack, { publicUrl: 'https://host.example/a/' });
  t.teardown(() => host.close());
  const sandbox = sandboxRecord({ accountId: account.id, hostId: host.hostId, state });
  await sandboxes.publish(sandbox);
  const path = `/api/sandboxes/${sandbox.id}/connections`;
  return { api: new ApiClient(stack.baseUrl, token), host, sandbox, path };
}

const tokenIn = (url: string): string => new URL(url).searchParams.get('token') ?? '';

test('the URL of a connection leads to the host of the sandbox, for a minute', async (t) => {
  const { api, host, sandbox, path } = await newSandbox(t);
  const before = Date.now();
  const reply = await api.call<{ data: SandboxConnection }>('POST', path);
  t.is(reply.status, 200);
  t.deepEqual(Object.keys(reply.body.data), ['url', 'expires_at']);
  const { url, expires_at: expiry } = reply.body.data;
  t.true(url.startsWith(`wss://host.example/a/sandboxes/${sandbox.id}/connection?token=`), url);
  t.regex(expiry, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/u);
  const lifetime = Date.parse(expiry) - LIMITS.connectionTokenTtlMs;
  t.true(lifetime >= before && lifetime <= Date.now());
  t.deepEqual(host.connectionKeys.verify(tokenIn(url)), {
    sandboxId: sandbox.id,
    accountId: sandbox.accountId,
    hostId: host.hostId,
    region: t.context.stack.environment['REGION'] ?? '',
    expiresAt: Date.parse(expiry),
  });
  t.deepEqual(host.jobs, [], 'the host was not asked');
});

test('every call signs for its own sandbox, and no other host accepts the token', async (t) => {
  const [one, other] = await Promise.all([newSandbox(t), newSandbox(t)]);
  const { url } = await one.api.data<SandboxConnection>('POST', one.path);
  t.is(one.host.connectionKeys.verify(tokenIn(url))?.sandboxId, one.sandbox.id);
  t.is(other.host.connectionKeys.verify(tokenIn(url)), undefined);
});

test('the scheme of a connection follows the public URL of the host, its path stays', (t) => {
  const id = newSandboxId();
  const end = `/sandboxes/${id}/connection?token=x.y.z`;
  t.is(connectionUrl('http://10.0.0.1:8710', id, 'x.y.z'), `ws://10.0.0.1:8710${end}`);
  t.is(connectionUrl('http://10.0.0.1:8710/', id, 'x.y.z'), `ws://10.0.0.1:8710${end}`);
  t.is(connectionUrl('https://a.example', id, 'x.y.z'), `wss://a.example${end}`);
  t.is(connectionUrl('https://a.example/h/1//', id, 'x.y.z'), `wss://a.example/h/1${end}`);
  t.is(connectionUrl('http://https.example', id, 'x.y.z'), `ws://https.example${end}`);
});

test('only a running sandbox can be connected to', async (t) => {
  const { api, sandbox, path } = await newSandbox(t, { state: 'stopped' });
  const { sandboxes } = await t.context.stack.openDirectory();
  let { revision } = sandbox;
  for (const state of sandboxStates) {
    revision += 1;
    await sandboxes.publish({ ...sandbox, state, revision });
    const { status, body } = await api.call<{ code?: string; error: string }>('POST', path);
    if (state === 'running') {
      t.is(status, 200);
      continue;
    }
    t.is(status, 409, state);
    t.is(body.code, 'sandbox_not_running');
    t.true(body.error.includes(statusOfState(state)), body.error);
  }
});

test("another account's sandbox, a missing one and a malformed id answer alike", async (t) => {
  const { sandbox, path } = await newSandbox(t);
  const stranger = await t.context.stack.newClient();
  for (const id of [sandbox.id, newSandboxId(), 'x']) {
    const reply = await stranger.call('POST', path.replace(sandbox.id, id));
    t.is(reply.status, 404);
    t.like(reply.body, { code: 'not_found', error: `sandbox ${id} not found` });
  }
  const nobody = new ApiClient(t.context.stack.baseUrl, 'key-wrong');
  t.is((await nobody.call('POST', path)).status, 401);
});

test('a name alone leads to the record of a running sandbox and to its processes', async (t) => {
  const { api, host, sandbox, path } = await newSandbox(t);
  const { sandboxes } = await t.context.stack.openDirectory();
  const byName = (name: string, caller = api) =>
    caller.call<{ data: NamedSandboxConnection; code?: string; error: string }>(
      'POST',
      '/api/sandboxes/connections',
      { name },
    );
  const { status, body } = await byName(sandbox.config.name);
  t.is(status, 200);
  t.deepEqual(Object.keys(body.data), ['url', 'expires_at', 'sandbox']);
  t.deepEqual(body.data.sandbox, await api.data('GET', path.replace('/connections', '')));
  const claims = host.connectionKeys.verify(tokenIn(body.data.url));
  t.like(claims, { sandboxId: sandbox.id, accountId: sandbox.accountId, hostId: host.hostId });
  const stranger = await t.context.stack.newClient();
  for (const [name, caller] of [
    ['nobody'],
    [sandbox.id],
    [sandbox.config.name, stranger],
  ] as const) {
    const refused = await byName(name, caller);
    t.is(refused.status, 404);
    t.like(refused.body, { code: 'not_found', error: `there is no sandbox named ${name}` });
  }
  t.is((await byName('')).status, 400);
  await sandboxes.publish({ ...sandbox, state: 'paused', revision: sandbox.revision + 1 });
  const paused = await byName(sandbox.config.name);
  t.is(paused.status, 409);
  t.like(paused.body, { code: 'sandbox_not_running' });
});

test('no URL is issued while the host of the sandbox is away', async (t) => {
  const { api, host, path } = await newSandbox(t);
  host.breakLink();
  const refused = async (): Promise<boolean> => (await api.call('POST', path)).status === 503;
  await waitFor('the node to notice the loss', refused);
  const { body, headers } = await api.call('POST', path);
  t.is(body.code, 'unavailable');
  t.is(headers.get('retry-after'), '2');
});

test('connection tokens never appear in a log', async (t) => {
  const { api, path } = await newSandbox(t);
  const { url } = await api.data<SandboxConnection>('POST', path);
  await api.call('GET', '/api/disks'); // Logged after the connection.
  const log = await t.context.stack.control.readLog();
  t.true(log.includes('/api/sandboxes/{sid}/connections'));
  t.false(log.includes(tokenIn(url).split('.').at(-1) ?? ''));
});

test.serial('hosts accept URLs of every control node while signing keys are rotated', async (t) => {
  const { stack } = t.context;
  const { api, host, path } = await newSandbox(t);
  const { url: formerUrl } = await api.data<SandboxConnection>('POST', path);
  const newKey = randomBytes(32).toString('base64url');
  const formerKey = stack.environment['SIGNING_KEYS'] ?? '';
  const rotated = await stack.addControl({ SIGNING_KEYS: `${newKey},${formerKey}` });
  await rotated.start();
  const rotatedApi = new ApiClient(rotated.environment['PUBLIC_BASE_URL'] ?? '', api.key);
  const urlOfRotated = (): Promise<string | undefined> =>
    rotatedApi.data<SandboxConnection>('POST', path).then(
      ({ url }) => url,
      () => undefined,
    );
  const newUrl = await waitFor('the new node to know the host', urlOfRotated);
  const publicKeyOf = (url: string): string => tokenIn(url).split('.')[0] ?? '';
  t.not(publicKeyOf(newUrl), publicKeyOf(formerUrl), 'the new key signs');
  const { url } = await api.data<SandboxConnection>('POST', path);
  for (const given of [formerUrl, newUrl, url]) {
    t.truthy(await waitFor('its keys', async () => host.connectionKeys.verify(tokenIn(given))));
  }
  await rotated.daemon.stop('SIGKILL');
  t.truthy(host.connectionKeys.verify(tokenIn(newUrl)), 'the node that signed it is gone');
});
