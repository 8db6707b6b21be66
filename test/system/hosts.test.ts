/* Hosts as operators see and order them: two agents with virtual machines. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { keys } from '../../shared/directory/keys.ts';
import { accountScopes } from '../../shared/key-scopes.ts';
import type { Host, HostReport } from '../../shared/schemas/host.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import {
  commandSandbox,
  createSandbox,
  getSandbox,
  outputOf,
  bring,
  removeSandbox,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import type { Stack, StackNode } from '../helpers/stack.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';
import { LIMITS } from '../../shared/limits.ts';

const idOf = async ({ environment }: StackNode): Promise<string> =>
  (await readFile(join(environment['AGENT_DATA_DIR'] ?? '', 'host-id'), 'utf8')).trim();

const { serial: test } = stackTest(sandboxSettings(), async ({ stack }) => {
  const other = await stack.addAgent();
  await other.start();
  const operator = await stack.newClient(['operator']);
  const ids = await Promise.all(stack.agents.map(idOf));
  const [first = '', second = ''] = ids;
  await waitFor('both hosts', async () => (await listHosts(operator)).length === 2);
  return { operator, first, second, other };
});

const listHosts = (api: ApiClient): Promise<Host[]> => api.data('GET', '/api/hosts');
const getHost = (api: ApiClient, id: string): Promise<Host> => api.data('GET', `/api/hosts/${id}`);
const order = (api: ApiClient, id: string, verb: string): Promise<Host> =>
  api.data('POST', `/api/hosts/${id}/${verb}`);

/** A sandbox on this host: while the other is cordoned, there is no choice. */
async function sandboxOn(
  { api, operator }: { api: ApiClient; operator: ApiClient },
  { other, body = {} }: { other: string; body?: object },
): Promise<string> {
  await order(operator, other, 'cordon');
  const { sandbox_id: id } = await createSandbox(api, { ...body });
  await order(operator, other, 'uncordon');
  return id;
}

async function hostOf(stack: Stack, sandboxId: string): Promise<string | undefined> {
  const { accounts, sandboxes } = await stack.openDirectory();
  for (const { id } of await accounts.list()) {
    const record = await sandboxes.get(id, sandboxId);
    if (record !== undefined) return record.hostId;
  }
  return undefined;
}

test('only keys of operators reach hosts', async (t) => {
  const { stack, api, first } = t.context;
  for (const scope of accountScopes) {
    const client = await stack.newClient([scope]);
    for (const [method, path] of [
      ['GET', '/api/hosts'],
      ['POST', `/api/hosts/${first}/drain`],
      ['DELETE', `/api/hosts/${first}`],
    ] as const) {
      const { status, body } = await client.call(method, path);
      t.deepEqual([status, body.code], [403, 'insufficient_scope'], `${scope} ${method}`);
      t.regex(body.error, /scope operator.+scripts\/admin/u);
    }
  }
  const { status } = await api.call('POST', '/api/tokens', { name: 'n', scopes: ['operator'] });
  t.is(status, 400, 'an account makes no such key');
});

test('each host is listed with what it has', async (t) => {
  const { stack, operator, first, second } = t.context;
  const hosts = await listHosts(operator);
  t.deepEqual(
    hosts.map(({ id }) => id),
    [first, second].toSorted(),
  );
  for (const host of hosts) {
    t.deepEqual([host.state, host.order, host.region], ['up', 'up', 'local-test']);
    t.true(host.vcpus > 0 && host.vcpusFree <= host.vcpus);
    t.true(host.memoryMib > 0 && host.execSlots > 0);
    t.deepEqual([host.accelerator, host.acceleratorReason], ['tcg', 'set']);
    t.true(Date.parse(host.lastHeartbeat) + LIMITS.hostTtlMs > Date.now());
    await waitFor(
      'its free space',
      async () => (await getHost(operator, host.id)).storageFreeBytes,
    );
  }
  const { AGENT_ADMIN_PORT: port } = stack.environment;
  const metrics = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  t.regex(
    metrics,
    /^berth_sandbox_accelerator\{accelerator="tcg",reason="set",service="agent"\} 1$/mu,
  );
  t.is((await operator.call('GET', '/api/hosts/host-000000000000')).status, 404);
  t.is((await operator.call('POST', '/api/hosts/host-000000000000/drain')).status, 404);
});

test('a cordoned host takes nothing new, and its sandboxes go on', async (t) => {
  const { stack, api, operator, first, second } = t.context;
  const there = await sandboxOn(t.context, { other: second });
  t.is(await hostOf(stack, there), first);
  const { disks } = await getHost(operator, second);
  const { id: disk } = await createDisk(api);
  await order(operator, second, 'cordon');
  await exec(api, disk, 'echo kept > file'); // Attached at the first host.
  await order(operator, second, 'uncordon');

  const host = await order(operator, first, 'cordon');
  t.deepEqual([host.state, host.order], ['cordoned', 'cordoned']);
  t.deepEqual((await order(operator, first, 'cordon')).state, 'cordoned', 'again');
  await waitFor('the disk elsewhere', async () => {
    t.is((await exec(api, disk, 'cat file')).stdout, 'kept\n');
    return (await getHost(operator, second)).disks > disks;
  });
  const { sandbox_id: elsewhere } = await createSandbox(api);
  t.is(await hostOf(stack, elsewhere), second);
  const forked = await commandSandbox(api, there, 'fork');
  t.is(forked.status, 503, 'a copy would be new there');
  await bring(api, there, 'pause', 'paused');
  await bring(api, there, 'resume', 'running');
  t.is(await outputOf(api, there, 'printf works'), 'works');
  t.is((await order(operator, first, 'uncordon')).state, 'up');
  await Promise.all([there, elsewhere].map((id) => removeSandbox(api, id)));
});

test('a drain goes on over kills of the agent and of control, and is undone', async (t) => {
  const { stack, api, operator, first, second } = t.context;
  const { id: disk } = await createDisk(api);
  const mounts = [{ disk_id: disk, path: '/data' }];
  const id = await sandboxOn(t.context, { other: second, body: { mounts } });
  await outputOf(api, id, 'echo kept > /data/file; echo mine > /root/file; sync');
  await order(operator, first, 'drain');
  const [agent] = stack.agents;
  const [control] = stack.controls;
  await Promise.all([agent?.daemon.stop('SIGKILL'), control?.daemon.stop('SIGKILL')]);
  await Promise.all([agent?.start(), control?.start()]);

  const isDrained = async (): Promise<Host | false> => {
    const host = await getHost(operator, first);
    return host.state === 'drained' && host;
  };
  const drained = await waitFor('the drain', isDrained);
  t.deepEqual([drained.sandboxesActive, drained.disks, drained.execsRunning], [0, 0, 0]);
  t.is((await getSandbox(api, id)).status, 'paused');
  t.is((await order(operator, first, 'drain')).state, 'drained', 'again');
  const refused = await commandSandbox(api, id, 'resume');
  t.is(refused.status, 503);
  t.regex(refused.body.error, /drained by its operator/u);
  t.is((await exec(api, disk, 'cat file')).stdout, 'kept\n', 'on the other host');

  t.is((await order(operator, first, 'uncordon')).state, 'up');
  await bring(api, id, 'resume', 'running');
  t.is(await outputOf(api, id, 'cat /root/file /data/file'), 'mine\nkept\n');
  await bring(api, id, 'pause', 'paused');
});

test('a disk leaves a cordoned host whose former agent died with it attached', async (t) => {
  const { stack, api, operator, first, second } = t.context;
  const { id: disk } = await createDisk(api);
  await order(operator, second, 'cordon');
  await exec(api, disk, 'echo kept > file; sync');
  await order(operator, second, 'uncordon');
  const [agent] = stack.agents;
  await agent?.daemon.stop('SIGKILL');
  await agent?.start();
  await waitFor('the host', async () => (await getHost(operator, first)).state === 'up');
  await order(operator, first, 'cordon');
  t.is((await exec(api, disk, 'cat file')).stdout, 'kept\n');
  await order(operator, first, 'uncordon');
});

test('a dead host is removed with its sandboxes; a live one is not', async (t) => {
  const { stack, api, operator, first, second, other } = t.context;
  const id = await sandboxOn(t.context, { other: first });
  t.is(await hostOf(stack, id), second);
  await bring(api, id, 'pause', 'paused');
  const live = await operator.call('DELETE', `/api/hosts/${second}`);
  t.deepEqual([live.status, live.body.code], [409, 'host_in_use']);

  await other.daemon.stop('SIGKILL');
  // Time passes.
  const redis = await stack.redisClient();
  const reports = keys.hostReports('local-test');
  const report = JSON.parse((await redis.hget(reports, second)) ?? '') as HostReport;
  await redis.hset(reports, second, JSON.stringify({ ...report, seenAt: 1 }));
  t.is((await getHost(operator, second)).state, 'away');
  await operator.data('DELETE', `/api/hosts/${second}`);
  t.deepEqual(
    (await listHosts(operator)).map((host) => host.id),
    [first],
  );
  t.is((await operator.call('DELETE', `/api/hosts/${second}`)).status, 404);
  t.is((await api.call('GET', `/api/sandboxes/${id}`)).status, 404);

  // Its agent is refused, whoever starts it, and before it touches what its sandboxes left.
  other.daemon.start();
  const refusal = `${second} was removed from its cluster`;
  await waitFor('its refusal', async () => (await other.daemon.readLog()).includes(refusal));
  await waitFor('its end', async () => !other.daemon.isRunning);
  t.is((await listHosts(operator)).length, 1);

  // There is no boot here to clear away what the killed agent left: the next agent does.
  await redis.srem(keys.removedHosts('local-test'), second);
  await other.start();
  await waitFor('its return', async () => (await listHosts(operator)).length === 2);
});
