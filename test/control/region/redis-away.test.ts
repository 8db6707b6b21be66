import { routes } from '../../../control/routes.ts';
import type { ApiKey } from '../../../shared/schemas/api-key.ts';
import type { Disk } from '../../../shared/schemas/disk.ts';
import type { ApiClient } from '../../helpers/api.ts';
import { createDisk, exec, missingDiskId, newName } from '../../helpers/disks.ts';
import type { Stack } from '../../helpers/stack.ts';
import { stackTest } from '../../helpers/stack-test.ts';
import { waitFor } from '../../helpers/wait.ts';

const test = stackTest();

const bodies: Readonly<Record<string, object>> = {
  createDisk: { name: 'disk' },
  addDiskUser: { type: 'token', nickname: 'n' },
  setAllowedIps: { allowedIps: [] },
  setAllowedOrigins: { allowedOrigins: [] },
  revokeDelegation: { clientId: 'c', inodeId: 1 },
  execOnDisk: { command: 'true' },
  execOnDisks: { command: 'true', disks: { a: missingDiskId } },
  createApiKey: { name: 'n' },
};

const chosenUser = (principal: string): object => ({
  type: 'token',
  nickname: 'n',
  principal,
  tokenSuffix: principal.slice(-4),
});

/** Redis is back and everything has noticed. */
async function bringRedisBack({ stack, api }: { stack: Stack; api: ApiClient }, diskId: string) {
  await stack.startRedis();
  await waitFor('control to be ready', async () => (await fetch(`${stack.baseUrl}/readyz`)).ok);
  await waitFor('a command to run', async () => {
    const reply = await api.call('POST', `/api/disks/${diskId}/exec`, { command: 'true' });
    return reply.status === 200;
  });
}

test.serial('without Redis every endpoint answers 503 with Retry-After', async (t) => {
  const { stack, api } = t.context;
  const disk = await createDisk(api, { allowedIps: ['10.0.0.1'] });
  const { id } = disk;
  await exec(api, id, 'echo kept > file');
  await api.data('POST', `/api/disks/${id}/users`, { type: 'cloudsts', principal: 'role' });
  const gone = await api.data<ApiKey & { token: string }>('POST', '/api/tokens', { name: 'gone' });
  const kept = await api.data<ApiKey & { token: string }>('POST', '/api/tokens', { name: 'kept' });
  await api.data('DELETE', `/api/tokens/${gone.id}`);
  const before = await api.data<Disk>('GET', `/api/disks/${id}`);
  const pids = [stack.control.pid, stack.agent.pid];

  await stack.redis.stop();
  await waitFor('the key to be read again', async () => {
    const { status } = await api.call('GET', '/api/disks/no-id');
    return status === 503;
  });
  for (const route of routes) {
    if (route.scope === 'public') continue;
    const path = route.path
      .replace('{userType}', 'token')
      .replace('{id}', id)
      .replaceAll(/\{\w+\}/gu, 'x');
    const body = bodies[route.operationId];
    const reply = await api.call(route.method.toUpperCase(), path, body);
    t.is(reply.status, 503, route.operationId);
    const code = route.bringsUpSandbox === true ? 'runtime_retryable' : 'unavailable';
    t.like(reply.body, { success: false, code });
    t.regex(reply.headers.get('retry-after') ?? '', /^[1-9]\d?$/u);
  }
  t.is((await fetch(`${stack.baseUrl}/healthz`)).status, 200);
  t.is((await fetch(`${stack.baseUrl}/openapi.json`)).status, 200);
  const ready = await fetch(`${stack.baseUrl}/readyz`);
  t.is(ready.status, 503);
  t.is(await ready.text(), 'Redis cannot be reached\n');

  await bringRedisBack(t.context, id);
  t.deepEqual([stack.control.pid, stack.agent.pid], pids, 'nothing was started again');
  const after = await api.data<Disk>('GET', `/api/disks/${id}`);
  for (const field of ['id', 'name', 'allowedIps', 'authorizedUsers', 'createdAt'] as const) {
    t.deepEqual(after[field], before[field]);
  }
  t.is((await exec(api, id, 'cat file')).stdout, 'kept\n');
  t.is((await api.withKey(kept.token).call('GET', '/api/disks')).status, 200);
  t.is((await api.withKey(gone.token).call('GET', '/api/disks')).status, 401);
});

test.serial('acknowledged writes survive a kill of Redis', async (t) => {
  const { stack, api } = t.context;
  const first = await createDisk(api);
  const acknowledged: string[] = [];
  const hangUp = new AbortController();
  /** Creates disks until one is refused. */
  const keepCreating = async (): Promise<void> => {
    const { status, body } = await api.call<{ data: Disk }>(
      'POST',
      '/api/disks',
      { name: newName() },
      {},
      hangUp.signal,
    );
    if (status !== 201) return;
    acknowledged.push(body.data.id);
    await keepCreating();
  };
  const callers = Array.from({ length: 4 }, keepCreating);
  const settled = Promise.allSettled(callers);
  await waitFor('some disks', () => Promise.resolve(acknowledged.length >= 8));
  await stack.redis.stop('SIGKILL');
  await Promise.any(callers);
  hangUp.abort(); // A job that Redis lost on the way would be waited for.
  await settled;
  await bringRedisBack(t.context, first.id);
  for (const id of acknowledged) {
    const { status } = await api.call('GET', `/api/disks/${id}`);
    t.is(status, 200, id);
  }
});

test.serial(
  'a creation that was cut off by a loss of Redis is finished by repeating the call',
  async (t) => {
    const { stack, api } = t.context;
    const helper = await createDisk(api);
    const redis = await stack.redisClient();
    const names = Array.from({ length: 6 }, newName);
    const create = (name: string, signal?: AbortSignal) =>
      api.call<{ data: Disk }>('POST', '/api/disks', { name }, {}, signal);
    const hangUp = new AbortController();
    const cutOff = names.map((name) => create(name, hangUp.signal));
    const settled = Promise.allSettled(cutOff);
    await waitFor('the names to be claimed', async () => {
      const [key = ''] = await redis.keys('*disk-names');
      return (await redis.hmget(key, ...names)).some((id) => id !== null);
    });
    await stack.redis.stop('SIGKILL');
    await Promise.any(cutOff);
    // A job that Redis lost on the way would be waited for.
    hangUp.abort();
    await settled;
    await bringRedisBack(t.context, helper.id);
    // A creator that could not say that it failed keeps others waiting; its time is over now.
    const keys = await redis.keys('*:disk:dsk-????????????????');
    await Promise.all(keys.map((key) => redis.hset(key, 'creatingUntil', '0')));
    for (const name of names) {
      const { status, body } = await create(name);
      t.true(status === 200 || status === 201, JSON.stringify(body));
      t.is(body.data.status, 'available');
      t.is((await exec(api, body.data.id, 'echo works')).stdout, 'works\n');
    }
  },
);

test.serial('a command that cannot be queued is not in the log, and did not run', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'true');
  const redis = await stack.redisClient();
  await redis.call('CLIENT', 'PAUSE', '60000', 'WRITE');
  const pending = api.call('POST', `/api/disks/${id}/exec`, {
    command: 'touch marker-of-the-command',
  });
  await waitFor('the job to wait in Redis', async () => {
    const clients = String(await redis.call('CLIENT', 'LIST'));
    return clients.split('\n').some((line) => /flags=b/u.test(line) && /cmd=evalsha/u.test(line));
  });
  await stack.redis.stop('SIGKILL');
  const { status, body } = await pending;
  t.true(status === 500 || status === 503, JSON.stringify(body));
  await bringRedisBack(t.context, id);
  t.is((await exec(api, id, 'ls')).stdout, '');
  for (const daemon of [stack.control, stack.agent]) {
    t.false((await daemon.readLog()).includes('marker-of-the-command'), daemon.name);
  }
});

test.serial('a full Redis answers 503, loses nothing and leaks nothing into the log', async (t) => {
  const { stack, api } = t.context;
  const { id, name } = await createDisk(api);
  await exec(api, id, 'true');
  const redis = await stack.redisClient();
  await redis.config('SET', 'maxmemory', '1');
  const calls: [string, string, object][] = [
    ['POST', `/api/disks/${id}/exec`, { command: 'echo secret-in-a-command' }],
    ['POST', '/api/disks', { name: newName(), authMethods: [chosenUser('secret-of-a-new-disk')] }],
    ['POST', `/api/disks/${id}/users`, chosenUser('secret-of-a-new-user')],
    ['POST', '/api/tokens', { name: 'secret-name' }],
  ];
  for (const [method, path, body] of calls) {
    const reply = await api.call(method, path, body);
    t.is(reply.status, 503, path);
    // By what Redis says, or by what the node has found out meanwhile.
    t.true(['unavailable', 'directory_full'].includes(reply.body.code ?? ''), path);
    t.false(JSON.stringify(reply.body).includes('OOM'));
  }
  t.is((await api.data<Disk[]>('GET', `/api/disks?name=${name}`)).length, 1);
  await redis.config('SET', 'maxmemory', '0');
  const { stdout } = await waitFor('the directory to take work again', () =>
    exec(api, id, 'echo works').catch(() => undefined),
  );
  t.is(stdout, 'works\n');
  t.false((await stack.control.readLog()).includes('secret-'));
});
