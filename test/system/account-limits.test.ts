/* An account's limits bind it at all control nodes together. */
import { accountLimitUnits, type AccountLimits } from '../../shared/directory/account-limits.ts';
import { keys } from '../../shared/directory/keys.ts';
import type { Disk } from '../../shared/schemas/disk.ts';
import type { Sandbox } from '../../shared/schemas/sandbox.ts';
import { sha256 } from '../../shared/secrets.ts';
import { ApiClient, type ApiReply } from '../helpers/api.ts';
import { createDisk, exec, newName } from '../helpers/disks.ts';
import { ObjectClient } from '../helpers/objects.ts';
import { containerSettings, createSandbox, sandboxPath } from '../helpers/sandboxes.ts';
import { stackTest } from '../helpers/stack-test.ts';
import type { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const test = stackTest(containerSettings(), async ({ stack, api }) => {
  const other = await stack.addControl();
  await other.start();
  const otherUrl = other.environment['PUBLIC_BASE_URL'] ?? '';
  const atOther = new ApiClient(otherUrl, api.key);
  await waitFor('the host at the other node', async () => {
    const made = await atOther.call('POST', '/api/disks', { name: 'first' });
    return made.status < 300;
  });
  return { otherUrl };
});

interface Limited {
  readonly api: ApiClient;
  /** The same key at the other control node. */
  readonly other: ApiClient;
  readonly accountId: string;
}

async function newAccount(
  { stack, otherUrl }: { readonly stack: Stack; readonly otherUrl: string },
  limits: AccountLimits,
): Promise<Limited> {
  const api = await stack.newClient();
  const redis = await stack.redisClient();
  const accountId = (await redis.hget(keys.apiKey(sha256(api.key)), 'accountId')) ?? '';
  await (await stack.openDirectory()).accountLimits.change(accountId, limits);
  return { api, other: new ApiClient(otherUrl, api.key), accountId };
}

/** Sends it several times at once, half of them to each node. */
const atOnce = ({ api, other }: Limited, count: number, path: string, body: () => object) =>
  Promise.all(
    Array.from({ length: count }, (_, i) => (i % 2 === 0 ? api : other).call('POST', path, body())),
  );

const isOver = (reply: ApiReply<{ code: string; error: string }>, limit: string): boolean =>
  reply.status === 429 &&
  reply.body.code === 'account_limit_reached' &&
  reply.body.error.includes(accountLimitUnits[limit as keyof typeof accountLimitUnits]) &&
  reply.headers.get('retry-after') === '2' &&
  reply.headers.get('ratelimit') === `"${limit}";r=0` &&
  (reply.headers.get('ratelimit-policy') ?? '').startsWith(`"${limit}";q=`);

test('sandboxes that are created at once at two nodes stay within the limit', async (t) => {
  const account = await newAccount(t.context, { vcpus: 3, memoryMib: 600, sandboxes: 5 });
  const { api } = account;
  const size = { vcpu_count: 1, mem_size_mib: 256 };
  const replies = await atOnce(account, 6, '/api/sandboxes?wait=true', () => size);
  const made = replies.filter(({ status }) => status === 202);
  t.is(made.length, 2, 'memory for two');
  t.is(replies.filter((reply) => isOver(reply, 'memoryMib')).length, 4);
  const large = await api.call('POST', '/api/sandboxes', { vcpu_count: 2, mem_size_mib: 256 });
  t.true(isOver(large, 'vcpus'), JSON.stringify(large.body));
  const [{ sandbox_id: sid }] = made.map(({ body }) => body.data as Sandbox) as [Sandbox];
  const fork = await api.call('POST', `${sandboxPath(sid)}/fork`, {});
  t.true(isOver(fork, 'memoryMib'), JSON.stringify(fork.body));

  await api.data('POST', `${sandboxPath(sid)}/stop`);
  await waitFor('the sandbox to stop', async () => {
    return (await api.data<Sandbox>('GET', sandboxPath(sid))).status === 'stopped';
  });
  const stopped = await api.call('POST', '/api/sandboxes', size);
  t.true(isOver(stopped, 'memoryMib'), 'a stopped one keeps its right to run');
  t.is((await api.call('DELETE', sandboxPath(sid))).status, 204);
  t.is((await api.call('POST', '/api/sandboxes', size)).status, 202);
});

test('copies and sandboxes from snapshots count as others do', async (t) => {
  const { api, accountId } = await newAccount(t.context, { sandboxes: 1 });
  const { sandbox_id: sid } = await createSandbox(api);
  const path = `${sandboxPath(sid)}/snapshots?wait=true`;
  const { snapshot_id: snapshot } = await api.data<{ snapshot_id: string }>('POST', path, {
    name: 'kept',
  });
  await waitFor('the snapshot', async () => {
    const { status } = await api.data<{ status: string }>('GET', `/api/snapshots/${snapshot}`);
    return status === 'ready';
  });
  for (const [create, body] of [
    ['/api/sandboxes', { snapshot }],
    [`${sandboxPath(sid)}/fork`, {}],
  ] as const) {
    const refused = await api.call('POST', create, body);
    t.true(isOver(refused, 'sandboxes'), JSON.stringify(refused.body));
  }
  await (await t.context.stack.openDirectory()).accountLimits.change(accountId, { sandboxes: 2 });
  t.is((await api.call('POST', '/api/sandboxes', { snapshot })).status, 202);
});

test('an account has as many sandboxes as it may', async (t) => {
  const account = await newAccount(t.context, { sandboxes: 1 });
  const size = { vcpu_count: 1, mem_size_mib: 256 };
  const replies = await atOnce(account, 4, '/api/sandboxes', () => size);
  t.is(replies.filter(({ status }) => status === 202).length, 1);
  t.is(replies.filter((reply) => isOver(reply, 'sandboxes')).length, 3);
});

test('disks that are created at once at two nodes stay within the limit', async (t) => {
  const account = await newAccount(t.context, { disks: 2 });
  const { api } = account;
  const replies = await atOnce(account, 6, '/api/disks', () => ({ name: newName() }));
  const made = replies.flatMap(({ status, body }) => (status === 201 ? [body.data as Disk] : []));
  t.is(made.length, 2);
  t.is(replies.filter((reply) => isOver(reply, 'disks')).length, 4);
  const [first] = made as [Disk];
  const again = await api.call('POST', '/api/disks', { name: first.name });
  t.is(again.status, 200, 'one that exists is found');
  await api.data('DELETE', `/api/disks/${first.id}`);
  t.is((await api.call('POST', '/api/disks', { name: newName() })).status, 201);
});

test('disks that hold what they may are read and emptied, and not filled', async (t) => {
  const { stack } = t.context;
  const { api } = await newAccount(t.context, { diskBytes: 8_000_000 });
  const { id } = await createDisk(api);
  const path = `/api/disks/${id}/exec`;
  await exec(api, id, 'head -c 12M /dev/urandom > large');
  const refused = await waitFor('the disk to be measured', async () => {
    const reply = await api.call('POST', path, { command: 'true' });
    return reply.status === 429 ? reply : undefined;
  });
  t.true(isOver(refused, 'diskBytes'), JSON.stringify(refused.body));
  t.true(isOver(await api.call('POST', '/api/disks', { name: newName() }), 'diskBytes'));
  const multi = await api.call('POST', '/api/exec', { command: 'true', disks: { a: id } });
  t.true(isOver(multi, 'diskBytes'));
  const objects = new ObjectClient(stack.baseUrl, api.key);
  const put = await objects.put(id, 'small', 'x');
  t.deepEqual([put.status, put.code], [400, 'QuotaExceeded']);
  t.is((await objects.get(id, 'large', { range: 'bytes=0-9' })).status, 206);
  const body = '<Delete><Object><Key>large</Key></Object></Delete>';
  const deleted = await objects.call('POST', `/${id}?delete`, { body });
  t.deepEqual([deleted.status, deleted.code], [200, undefined]);
  t.is((await objects.get(id, 'large')).status, 404);
  await waitFor('the disk to be measured again', async () => {
    return (await api.call('POST', path, { command: 'true' })).status === 200;
  });
});

test('an account sends as many requests as it may, to all nodes together', async (t) => {
  const { stack } = t.context;
  const { api, other } = await newAccount(t.context, { requestsPerSecond: 1 });
  const replies = await Promise.all(
    Array.from({ length: 20 }, (_, i) => (i % 2 === 0 ? api : other).call('GET', '/api/disks')),
  );
  const served = replies.filter(({ status }) => status === 200);
  const refused = replies.filter(({ status }) => status === 429);
  t.is(served.length + refused.length, 20);
  t.true(refused.length > 0);
  for (const { headers, body } of refused) {
    t.is(body.code, 'rate_limited');
    t.is(headers.get('retry-after'), '1');
    t.is(headers.get('ratelimit-policy'), '"requests";q=1;w=1');
    t.is(headers.get('ratelimit'), '"requests";r=0;t=1');
  }
  for (const { headers } of served) t.is(headers.get('ratelimit'), '"requests";r=0;t=1');
  const objects = new ObjectClient(stack.baseUrl, api.key);
  const { id } = await waitFor('a request to pass', async () => {
    const made = await api.call('POST', '/api/disks', { name: newName() });
    return made.status === 201 ? (made.body.data as Disk) : undefined;
  });
  const gets = await Promise.all(Array.from({ length: 8 }, () => objects.get(id, 'none')));
  t.true(gets.some(({ status, code }) => status === 503 && code === 'SlowDown'));
  const unlimited = await stack.newClient();
  const { headers } = await unlimited.call('GET', '/api/disks');
  t.is(headers.get('ratelimit'), null);
});

test('messages to /mcp are requests of their account', async (t) => {
  const { baseUrl } = t.context.stack;
  const { api } = await newAccount(t.context, { requestsPerSecond: 0 });
  const reply = await fetch(new URL('/mcp', baseUrl), {
    method: 'POST',
    headers: {
      authorization: api.key,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
    },
    body: '{"jsonrpc":"2.0","id":1,"method":"ping"}',
  });
  const { code } = (await reply.json()) as { code: string };
  t.deepEqual([reply.status, code], [429, 'rate_limited']);
  t.is(reply.headers.get('ratelimit-policy'), '"requests";q=0;w=1');
});
