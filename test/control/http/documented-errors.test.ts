import { randomBytes } from 'node:crypto';
import anyTest, { type TestFn } from 'ava';
import { Agent, request } from 'undici';
import { codesByStatus } from '../../../control/http/route-errors.ts';
import { routes } from '../../../control/routes.ts';
import { keys } from '../../../shared/directory/keys.ts';
import { newSandboxId } from '../../../shared/ids.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import { HTTP_LIMITS } from '../../../control/http/limits.ts';
import { invitationIdOf } from '../../../shared/host-invitation.ts';
import { randomSecret } from '../../../shared/secrets.ts';
import { ApiClient, type ApiReply } from '../../helpers/api.ts';
import { AuditedCalls } from '../../helpers/audited-calls.ts';
import { createDisk, exec, missingDiskId, newName, readManifest } from '../../helpers/disks.ts';
import { hostIdOf } from '../../helpers/host.ts';
import { forgeLink, open, share } from '../../helpers/shares.ts';
import { Stack } from '../../helpers/stack.ts';
import { waitFor } from '../../helpers/wait.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  /** A caller whose account was not let into the preview region. */
  outsider: ApiClient;
  /** With a key that may only read. */
  reader: ApiClient;
  /** With a key for hosts. */
  operator: ApiClient;
  /** Whose account may send no requests. */
  suspended: ApiClient;
  calls: AuditedCalls;
}

const test = anyTest as TestFn<Context>;
const DOWNLOADS_MAX = 64;

async function newAccount(
  stack: Stack,
  { allowed }: { allowed: boolean },
): Promise<{ api: ApiClient; accountId: string }> {
  const { accounts, apiKeys } = await stack.openDirectory();
  const account = await accounts.create(newName());
  await accounts.setRegionAccess(account.id, 'local-test', allowed);
  const { token } = await apiKeys.create(account, { name: 'test' });
  return { api: new ApiClient(stack.baseUrl, token), accountId: account.id };
}

test.before(async (t) => {
  t.context.calls = new AuditedCalls();
  const stack = await Stack.start({
    REGION_PREVIEW: 'true',
    EXEC_TIMEOUT_MS: '4000',
    DOWNLOADS_MAX: String(DOWNLOADS_MAX),
  });
  t.context.stack = stack;
  t.context.api = (await newAccount(stack, { allowed: true })).api;
  const { token } = await t.context.api.data<{ token: string }>('POST', '/api/tokens', {
    name: 'reader',
    scopes: ['read'],
  });
  const suspended = await newAccount(stack, { allowed: true });
  const { accountLimits } = await stack.openDirectory();
  await accountLimits.change(suspended.accountId, { requestsPerSecond: 0 });
  t.context.suspended = suspended.api;
  t.context.reader = t.context.api.withKey(token);
  t.context.operator = await stack.newClient(['operator']);
  t.context.outsider = (await newAccount(stack, { allowed: false })).api;
});

test.after(async (t) => {
  t.deepEqual(await t.context.calls.findFaults(t.context.stack), []);
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** A request that is right but for what a case changes in it. */
interface Call {
  readonly method: string;
  readonly path: string;
  readonly body?: object;
}

type Cause = (call: Call, context: Context) => Promise<ApiReply<{ code: string }>>;

const sandboxId = newSandboxId();
const sandboxPath = `/api/sandboxes/${sandboxId}`;
const snapshotPath = `/api/snapshots/${sandboxId}`;
const hostPath = '/api/hosts/host-0123456789ab';
const execPath = `${sandboxPath}/execs/${newSandboxId()}`;

const calls: Readonly<Record<string, Call>> = {
  listDisks: { method: 'GET', path: '/api/disks' },
  createDisk: { method: 'POST', path: '/api/disks', body: { name: 'disk' } },
  getDisk: { method: 'GET', path: '/api/disks/DISK' },
  deleteDisk: { method: 'DELETE', path: '/api/disks/DISK' },
  addDiskUser: {
    method: 'POST',
    path: '/api/disks/DISK/users',
    body: { type: 'token', nickname: 'n' },
  },
  setMountCredentials: {
    method: 'POST',
    path: '/api/disks/DISK/mounts/mnt-0123456789abcdef/credentials',
    body: { accessKeyId: 'a', secretAccessKey: 'b' },
  },
  removeDiskUser: { method: 'DELETE', path: '/api/disks/DISK/users/token?identifier=x' },
  getAllowedIps: { method: 'GET', path: '/api/disks/DISK/allowed-ips' },
  setAllowedIps: { method: 'PUT', path: '/api/disks/DISK/allowed-ips', body: { allowedIps: [] } },
  getAllowedOrigins: { method: 'GET', path: '/api/disks/DISK/allowed-origins' },
  setAllowedOrigins: {
    method: 'PUT',
    path: '/api/disks/DISK/allowed-origins',
    body: { allowedOrigins: [] },
  },
  listDelegations: { method: 'GET', path: '/api/disks/DISK/delegations' },
  revokeDelegation: {
    method: 'POST',
    path: '/api/disks/DISK/revoke-delegation',
    body: { clientId: 'c', inodeId: 1 },
  },
  createShareUrl: { method: 'POST', path: '/api/disks/DISK/share', body: { key: 'file' } },
  downloadShared: { method: 'GET', path: '/api/shared/TOKEN' },
  execOnDisk: { method: 'POST', path: '/api/disks/DISK/exec', body: { command: 'true' } },
  execOnDisks: {
    method: 'POST',
    path: '/api/exec',
    body: { command: 'true', disks: { a: 'DISK' } },
  },
  grepDisk: {
    method: 'POST',
    path: '/api/disks/DISK/grep',
    body: { directory: '', pattern: 'x' },
  },
  streamGrep: {
    method: 'POST',
    path: '/api/disks/DISK/grep/stream',
    body: { directory: '', pattern: 'x' },
  },
  listActivity: { method: 'GET', path: '/api/activity' },
  listWebhooks: { method: 'GET', path: '/api/webhooks' },
  createWebhook: {
    method: 'POST',
    path: '/api/webhooks',
    body: { url: 'https://hooks.example.com' },
  },
  deleteWebhook: { method: 'DELETE', path: `/api/webhooks/${sandboxId}` },
  listWebhookDeliveries: { method: 'GET', path: `/api/webhooks/${sandboxId}/deliveries` },
  getUsage: { method: 'GET', path: '/api/usage' },
  listApiKeys: { method: 'GET', path: '/api/tokens' },
  createApiKey: { method: 'POST', path: '/api/tokens', body: { name: 'n' } },
  deleteApiKey: { method: 'DELETE', path: `/api/tokens/${'0'.repeat(64)}` },
  listHosts: { method: 'GET', path: '/api/hosts' },
  getHost: { method: 'GET', path: hostPath },
  cordonHost: { method: 'POST', path: `${hostPath}/cordon` },
  uncordonHost: { method: 'POST', path: `${hostPath}/uncordon` },
  drainHost: { method: 'POST', path: `${hostPath}/drain` },
  fenceHost: { method: 'POST', path: `${hostPath}/fence` },
  deleteHost: { method: 'DELETE', path: hostPath },
  joinHost: {
    method: 'POST',
    path: '/api/hosts/join',
    body: { proof: 'p'.repeat(43), nonce: 'n'.repeat(43), name: 'node-2' },
  },
  listSandboxes: { method: 'GET', path: '/api/sandboxes' },
  createSandbox: { method: 'POST', path: '/api/sandboxes', body: {} },
  getSandbox: { method: 'GET', path: sandboxPath },
  deleteSandbox: { method: 'DELETE', path: sandboxPath },
  startSandbox: { method: 'POST', path: `${sandboxPath}/start`, body: {} },
  stopSandbox: { method: 'POST', path: `${sandboxPath}/stop` },
  pauseSandbox: { method: 'POST', path: `${sandboxPath}/pause` },
  resumeSandbox: { method: 'POST', path: `${sandboxPath}/resume` },
  forkSandbox: { method: 'POST', path: `${sandboxPath}/fork`, body: {} },
  setSandboxLimits: {
    method: 'POST',
    path: `${sandboxPath}/timeout`,
    body: { timeout: 3600, idle_ttl_seconds: 60 },
  },
  listSandboxExecs: { method: 'GET', path: `${sandboxPath}/execs` },
  execInSandbox: { method: 'POST', path: `${sandboxPath}/execs`, body: { command: 'true' } },
  getSandboxExec: { method: 'GET', path: execPath },
  cancelSandboxExec: { method: 'POST', path: `${execPath}/cancel` },
  connectSandboxByName: {
    method: 'POST',
    path: '/api/sandboxes/connections',
    body: { name: 'box' },
  },
  connectSandbox: { method: 'POST', path: `${sandboxPath}/connections` },
  readSandboxFile: { method: 'GET', path: `${sandboxPath}/files?path=/f` },
  writeSandboxFile: { method: 'PUT', path: `${sandboxPath}/files?path=/f` },
  removeSandboxFile: { method: 'DELETE', path: `${sandboxPath}/files?path=/f` },
  listSandboxFiles: { method: 'GET', path: `${sandboxPath}/files/list?path=/` },
  statSandboxFile: { method: 'GET', path: `${sandboxPath}/files/stat?path=/f` },
  moveSandboxFile: {
    method: 'POST',
    path: `${sandboxPath}/files/move`,
    body: { from: '/a', to: '/b' },
  },
  createSandboxDirectory: {
    method: 'POST',
    path: `${sandboxPath}/files/directories`,
    body: { path: '/d' },
  },
  watchSandboxFiles: { method: 'GET', path: `${sandboxPath}/files/watch?path=/` },
  getSandboxNetwork: { method: 'GET', path: `${sandboxPath}/network` },
  setSandboxNetwork: { method: 'PUT', path: `${sandboxPath}/network`, body: {} },
  listSandboxNetworkDecisions: { method: 'GET', path: `${sandboxPath}/network/decisions` },
  listSandboxProcesses: { method: 'GET', path: `${sandboxPath}/processes` },
  getSandboxMetrics: { method: 'GET', path: `${sandboxPath}/metrics` },
  createSnapshot: { method: 'POST', path: `${sandboxPath}/snapshots`, body: { name: 'kept' } },
  listSnapshots: { method: 'GET', path: '/api/snapshots' },
  buildImage: { method: 'POST', path: '/api/images', body: { source: 'debian:12' } },
  getImage: { method: 'GET', path: `/api/images/${'0'.repeat(64)}` },
  getSnapshot: { method: 'GET', path: snapshotPath },
  deleteSnapshot: { method: 'DELETE', path: snapshotPath },
  listSandboxPorts: { method: 'GET', path: `${sandboxPath}/ports` },
  exposeSandboxPort: { method: 'PUT', path: `${sandboxPath}/ports/80` },
  unexposeSandboxPort: { method: 'DELETE', path: `${sandboxPath}/ports/80` },
  listSandboxPortTokens: { method: 'GET', path: `${sandboxPath}/port-tokens` },
  createSandboxPortToken: {
    method: 'POST',
    path: `${sandboxPath}/port-tokens`,
    body: { port: 80 },
  },
  getSandboxPortToken: { method: 'GET', path: `${sandboxPath}/port-tokens/${'0'.repeat(64)}` },
  deleteSandboxPortToken: {
    method: 'DELETE',
    path: `${sandboxPath}/port-tokens/${'0'.repeat(64)}`,
  },
};

const send = (api: ApiClient, { method, path, body }: Call, diskId: string) => {
  const text = body === undefined ? undefined : JSON.stringify(body).replaceAll('DISK', diskId);
  return api.call<{ code: string }>(method, path.replace('DISK', diskId), text);
};

const unauthorized: Cause = (call, { api }) => send(api.withKey('key-wrong'), call, missingDiskId);
const missing: Cause = (call, { api }) => send(api, call, missingDiskId);
const malformedId: Cause = (call, { api }) => send(api, call, 'dsk-x');
const tooLarge: Cause = (call, { api }) => {
  const filler = 'x'.repeat(HTTP_LIMITS.requestBodyBytesMax);
  return send(api, { ...call, body: { ...call.body, filler } }, missingDiskId);
};
const cutOffBody: Cause = ({ method, path }, { api }) => api.call(method, path, '{"wait":');
const withBody =
  (body: object): Cause =>
  async (call, { api }) =>
    send(api, { ...call, body }, (await createDisk(api)).id);
const withQuery =
  (query: string): Cause =>
  (call, { api }) =>
    send(api, { ...call, path: `${call.path}?${query}` }, missingDiskId);

const withPath =
  (path: string): Cause =>
  (call, { api }) =>
    send(api, { ...call, path }, missingDiskId);

/** A record that nobody but a broken program could have written. */
async function whileBroken<T>({ stack }: Context, id: string, action: () => Promise<T>) {
  const redis = await stack.redisClient();
  const [key = ''] = await redis.keys(`*disk:${id}`);
  await redis.hset(key, 'rootAttrs', '{broken');
  try {
    return await action();
  } finally {
    await redis.hdel(key, 'rootAttrs');
  }
}

const brokenRecord: Cause = async (call, context) => {
  const { id, name } = await createDisk(context.api);
  const named = call.body === undefined ? call : { ...call, body: { ...call.body, name } };
  return whileBroken(context, id, () => send(context.api, named, id));
};

const timeout: Cause = async (call, { api }) => {
  const { id } = await createDisk(api);
  return send(api, { ...call, body: { ...call.body, command: 'sleep 60' } }, id);
};

const delegationConflict: Cause = async (call, { api }) => {
  const { id } = await createDisk(api);
  await exec(api, id, 'mkdir held');
  const body = { command: 'sleep 60', disks: { a: { disk: id, checkoutPaths: ['held'] } } };
  const holder = send(api, { ...call, body }, id);
  await waitFor('the delegation', async () => {
    const path = `/api/disks/${id}/delegations`;
    return (await api.data<{ delegations: object[] }>('GET', path)).delegations.length > 0;
  });
  const refused = await send(api, { ...call, body }, id);
  await holder;
  return refused;
};

/** The key comes with another body first. */
const keyConflict: Cause = async ({ method, path, body }, { api }) => {
  const { id } = await createDisk(api);
  const headers = { 'idempotency-key': newName() };
  await api.call(method, path.replace('DISK', id), { ...body, first: true }, headers);
  return api.call(method, path.replace('DISK', id), body, headers);
};

/** A download of a file that is there, but for what the case changes. */
const downloading =
  (headers: Record<string, string>, change: { expiresAt?: number; key?: string } = {}): Cause =>
  async ({ method }, { api, stack }) => {
    const { id } = await createDisk(api);
    await exec(api, id, 'echo content > file');
    const { accountId } = await readManifest(stack, id);
    const { key = 'file', expiresAt = Date.now() + 60_000 } = change;
    const link = forgeLink(stack, { accountId, diskId: id, key }, { expiresAt });
    return api.call(method, link.slice(stack.baseUrl.length), undefined, headers);
  };

const shareKeyConflict: Cause = async (call, context) => {
  const { id } = await createDisk(context.api);
  await exec(context.api, id, 'echo content > file');
  const headers = { 'idempotency-key': newName() };
  const path = `/api/disks/${id}/share`;
  await context.api.call('POST', path, { key: 'file', expiresIn: 1 }, headers);
  return context.api.call('POST', path, call.body, headers);
};

/** The disk's record cannot be read. */
const sharedBroken: Cause = async (_call, context) => {
  const { api, stack } = context;
  const { id } = await createDisk(api);
  const { accountId } = await readManifest(stack, id);
  const link = forgeLink(stack, { accountId, diskId: id, key: 'file' });
  const call = { method: 'GET', path: link.slice(stack.baseUrl.length) };
  return whileBroken(context, id, () => send(api, call, id));
};

/**
 * Lets as many downloads of the link stand still as it may have. On a slow machine the first of
 * them may be ended for standing still before the last one has begun, which makes room: then it is
 * tried again.
 */
const sharedTooOften: Cause = async ({ method }, { stack }) => {
  const { api } = await newAccount(stack, { allowed: true });
  const { id } = await createDisk(api);
  await exec(api, id, 'truncate -s 100M file');
  const link = await share(api, id, 'file');
  return waitFor('a download to be refused', async () => {
    const held = await Promise.all(Array.from({ length: DOWNLOADS_MAX / 2 }, () => open(link)));
    try {
      for (const answer of held) answer.on('error', () => undefined).pause();
      const path = link.slice(stack.baseUrl.length);
      const reply = await api.call(method, path, undefined, { range: 'bytes=0-0' });
      return reply.status === 206 ? undefined : reply;
    } finally {
      for (const answer of held) answer.destroy();
    }
  });
};

/** A sandbox's record that nobody but a broken program could have written. */
const brokenSandbox: Cause = async (call, { stack }) => {
  const { api, accountId } = await newAccount(stack, { allowed: true });
  const redis = await stack.redisClient();
  await redis.hset(keys.sandboxes('local-test', accountId), sandboxId, '{broken');
  await redis.hset(keys.sandboxNames('local-test', accountId), 'box', sandboxId);
  return send(api, call, missingDiskId);
};

/** The same of a snapshot. */
const brokenSnapshot: Cause = async (call, { stack }) => {
  const { api, accountId } = await newAccount(stack, { allowed: true });
  const redis = await stack.redisClient();
  await redis.hset(keys.snapshots('local-test', accountId), sandboxId, '{broken');
  return send(api, call, missingDiskId);
};

/** A host's report that nobody but a broken program could have written. */
const brokenHost: Cause = async (call, { operator, stack }) => {
  const redis = await stack.redisClient();
  const reports = keys.hostReports('local-test');
  const hostId = `host-${randomBytes(6).toString('hex')}`; // Others remove theirs meanwhile.
  await redis.hset(reports, hostId, '{broken');
  try {
    const path = call.path.replace('host-0123456789ab', hostId);
    return await send(operator, { ...call, path }, missingDiskId);
  } finally {
    await redis.hdel(reports, hostId);
  }
};

const malformedHost: Cause = ({ method, path }, { operator }) =>
  send(operator, { method, path: path.replace('host-0', 'guest-0') }, missingDiskId);

const missingHost: Cause = (call, { operator }) => send(operator, call, missingDiskId);

const tooLargeForHost: Cause = (call, context) =>
  tooLarge(call, { ...context, api: context.operator });

const liveHost: Cause = async (call, { operator, stack }) => {
  const own = `/api/hosts/${await hostIdOf(stack.environment)}`;
  await waitFor('the host', async () => (await operator.call('GET', own)).status === 200);
  const path = call.path.replace(hostPath, own);
  return send(operator, { ...call, path }, missingDiskId);
};

/** Another host has used it. */
const usedInvitation: Cause = async (call, { api, stack }) => {
  const { hostInvitations } = await stack.openDirectory();
  const proof = randomSecret();
  await hostInvitations.add(invitationIdOf(proof), 'sealed', 60_000);
  await hostInvitations.claim(invitationIdOf(proof), 'nonce');
  return send(api, { ...call, body: { ...call.body, proof } }, missingDiskId);
};

/** From an address of its own, which has tried as often as it may. */
const joinsTooOften: Cause = async (call, { stack }) => {
  const address = '127.0.0.9';
  const redis = await stack.redisClient();
  await redis.set(
    keys.joinAttempts('local-test', address),
    DIRECTORY_LIMITS.joinAttemptsPerAddressMax,
  );
  const dispatcher = new Agent({ localAddress: address });
  const { statusCode, headers, body } = await request(`${stack.baseUrl}${call.path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(call.body),
    dispatcher,
  });
  const parsed = (await body.json()) as ApiReply<{ code: string }>['body'];
  await dispatcher.close();
  return {
    status: statusCode,
    body: parsed,
    headers: new Headers(headers as Record<string, string>),
  };
};

const beyondScope: Cause = (call, { reader }) => send(reader, call, missingDiskId);

const tooFast: Cause = (call, { suspended }) => send(suspended, call, missingDiskId);

const forbidden: Cause = (call, { outsider }) => send(outsider, call, missingDiskId);

/** Records the disk like a host whose sandbox mounts it. */
const heldDisk: Cause = async (call, { api, stack }) => {
  const { id } = await createDisk(api);
  const { accountId } = await readManifest(stack, id);
  const redis = await stack.redisClient();
  const hostId = await hostIdOf(stack.environment);
  await redis.set(keys.diskLease('local-test', accountId, id), `${hostId} 1 held`);
  return send(api, call, id);
};

const diskConflict: Cause = async (call, { api }) => {
  const { name } = await createDisk(api);
  return send(api, { ...call, body: { name, rootAttrs: { mode: 0o700 } } }, missingDiskId);
};

/** How to bring about each error that an endpoint documents; by `<operation> <status>`. */
const causes: Readonly<Record<string, Cause>> = {
  'listDisks 400': withQuery('limit=0'),
  'createDisk 400': withBody({}),
  'createDisk 403': forbidden,
  'createDisk 409': diskConflict,
  'deleteDisk 409': heldDisk,
  'addDiskUser 400': withBody({ type: 'token' }),
  'setMountCredentials 400': withBody({ accessKeyId: 1 }),
  'removeDiskUser 400': async (call, { api }) => send(api, call, (await createDisk(api)).id),
  'setAllowedIps 400': withBody({ allowedIps: ['x'] }),
  'setAllowedOrigins 400': withBody({ allowedOrigins: ['https://a.test/'] }),
  'revokeDelegation 400': withBody({}),
  'createShareUrl 400': withBody({ key: '..' }),
  'createShareUrl 409': shareKeyConflict,
  'downloadShared 403': (call, { api }) => send(api, call, missingDiskId),
  'downloadShared 404': downloading({}, { key: 'missing' }),
  'downloadShared 410': downloading({}, { expiresAt: Date.now() - 1 }),
  'downloadShared 412': downloading({ 'if-match': '"other"' }),
  'downloadShared 429': sharedTooOften,
  'downloadShared 416': downloading({ range: 'bytes=99-' }),
  'downloadShared 500': sharedBroken,
  'execOnDisk 400': withBody({ command: '' }),
  'execOnDisk 504': timeout,
  'execOnDisks 400': withBody({ command: 'true', disks: {} }),
  'execOnDisks 409': delegationConflict,
  'execOnDisks 504': timeout,
  'grepDisk 400': withBody({ directory: '..', pattern: 'x' }),
  'streamGrep 400': withBody({ directory: '..', pattern: 'x' }),
  'listActivity 400': withQuery('level=loud'),
  'createWebhook 400': withBody({ url: 'https://10.0.0.1/' }),
  'getUsage 400': withQuery('month=2026-13'),
  'listApiKeys 400': withQuery('cursor=garbled'),
  'createApiKey 400': withBody({ name: '' }),
  'listSandboxes 400': withQuery('filesystem=x'),
  'createSandbox 400': withBody({ name: '' }),
  'createSandbox 404': withBody({ image_id: '0'.repeat(64) }),
  'startSandbox 400': withQuery('wait=x'),
  'stopSandbox 400': withQuery('wait=x'),
  'pauseSandbox 400': withQuery('wait=x'),
  'resumeSandbox 400': withQuery('wait=x'),
  'forkSandbox 400': withBody({ name: '' }),
  'createSnapshot 400': withBody({ name: '' }),
  'buildImage 400': withBody({ source: 'not a reference' }),
  'joinHost 400': withBody({ proof: 'short' }),
  'joinHost 403': usedInvitation,
  'joinHost 404': missing,
  'joinHost 429': joinsTooOften,
  'listSnapshots 400': withQuery('limit=0'),
  'setSandboxLimits 400': withBody({}),
  'connectSandbox 400': cutOffBody,
  'cancelSandboxExec 400': cutOffBody,
  'connectSandboxByName 400': withBody({ name: '' }),
  'execInSandbox 400': withBody({ command: '' }),
  'exposeSandboxPort 400': withPath(`${sandboxPath}/ports/0`),
  'unexposeSandboxPort 400': withPath(`${sandboxPath}/ports/65536`),
  'setSandboxNetwork 400': withBody({ ingress: {} }),
  'listSandboxNetworkDecisions 400': withQuery('limit=0'),
  'readSandboxFile 400': withPath(`${sandboxPath}/files?path=relative`),
  'writeSandboxFile 400': withPath(`${sandboxPath}/files?path=/f&mode=9`),
  'removeSandboxFile 400': withPath(`${sandboxPath}/files?path=/%00`),
  'listSandboxFiles 400': withPath(`${sandboxPath}/files/list?path=/&limit=0`),
  'statSandboxFile 400': withPath(`${sandboxPath}/files/stat`),
  'moveSandboxFile 400': withBody({ from: '/a' }),
  'createSandboxDirectory 400': withBody({ path: '/a', path_encoded: '/a' }),
  'watchSandboxFiles 400': withPath(`${sandboxPath}/files/watch?path=/&path=/`),
  'listSandboxPortTokens 400': withQuery('limit=0'),
  'createSandboxPortToken 400': withBody({ port: 80, ttl: 'soon' }),
};
const general: Readonly<Record<number, Cause>> = {
  400: malformedId,
  401: unauthorized,
  403: beyondScope,
  404: missing,
  409: keyConflict,
  413: tooLarge,
  429: tooFast,
  500: brokenRecord,
};
const ofHosts: Readonly<Record<number, Cause>> = {
  400: malformedHost,
  404: missingHost,
  409: liveHost,
  413: tooLargeForHost,
  500: brokenHost,
};
const generalOf = (path: string, status: number): Cause | undefined => {
  if (path.startsWith('/api/hosts')) return ofHosts[status] ?? general[status];
  if (status !== 500) return general[status];
  if (path.startsWith('/api/snapshots')) return brokenSnapshot;
  return path.startsWith('/api/sandboxes') ? brokenSandbox : general[status];
};

const codes: Readonly<Record<number, string>> = {
  400: 'bad_request',
  401: 'unauthorized',
  403: 'insufficient_scope',
  404: 'not_found',
  409: 'idempotency_conflict',
  410: 'expired',
  412: 'precondition_failed',
  413: 'body_too_large',
  416: 'range_not_satisfiable',
  429: 'rate_limited',
  500: 'internal_server_error',
  504: 'timeout',
};
const specialCodes: Readonly<Record<string, string>> = {
  'createDisk 403': 'forbidden',
  'createDisk 409': 'disk_conflict',
  'downloadShared 403': 'forbidden',
  'deleteDisk 409': 'disk_in_use',
  'fenceHost 409': 'host_in_use',
  'deleteHost 409': 'host_in_use',
  'joinHost 403': 'forbidden',
  'execOnDisks 409': 'delegation_conflict',
};

/**
 * Nothing that is stored about keys can be read wrongly, so that nothing but a bug causes a 500.
 */
const withoutStoredText = new Set([
  ...['listWebhooks', 'createWebhook', 'deleteWebhook', 'listWebhookDeliveries'],
  ...['getUsage', 'listActivity', 'listApiKeys', 'createApiKey', 'deleteApiKey'],
  ...['createSandbox', 'joinHost'],
]);

/**
 * These need a sandbox that runs (test/system/sandboxes.test.ts, snapshots.test.ts), or a host that
 * does not answer.
 */
const needsSandbox = (operationId: string, status: number): boolean =>
  (/Sandbox|Snapshot/u.test(operationId) && [409, 504].includes(status)) ||
  needsSandboxFile(operationId, status);

/** These need a file of a sandbox (test/system/sandbox-files.test.ts). */
const needsSandboxFile = (operationId: string, status: number): boolean =>
  operationId === 'writeSandboxFile'
    ? [403, 412, 413].includes(status)
    : (/Sandbox(?:File|Directory)/u.test(operationId) && status === 403) ||
      (operationId === 'readSandboxFile' && [412, 413, 416].includes(status));

/** These need a host that builds images (test/system/images.test.ts). */
const needsBuilder = (operationId: string, status: number): boolean =>
  operationId.endsWith('Image') && [404, 500, 504].includes(status);

for (const route of routes) {
  const { operationId, path, plainUnauthorized } = route;
  for (const status of codesByStatus(route).keys()) {
    if (status === 503) continue; // See redis-away.test.ts.
    if (needsSandbox(operationId, status) || needsBuilder(operationId, status)) continue;
    if (status === 500 && withoutStoredText.has(operationId)) continue;
    test(`${operationId} answers ${status}`, async (t) => {
      const call = calls[operationId];
      const cause = causes[`${operationId} ${status}`] ?? generalOf(path, status);
      if (call === undefined || cause === undefined) {
        t.fail('no test brings this error about: add one to the table');
        return;
      }
      const reply = await cause(call, t.context);
      t.is(reply.status, status, JSON.stringify(reply.body));
      if (status === 429) t.regex(reply.headers.get('retry-after') ?? '', /^[1-9]\d*$/u);
      if (status === 401 && plainUnauthorized === true) return;
      t.is<string | undefined, string | undefined>(
        reply.body.code,
        specialCodes[`${operationId} ${status}`] ?? codes[status],
      );
    });
  }
}
