/*
 * Agents die, hosts restart, Redis is emptied: sandboxes run on, or their state says that they
 * ended.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import {
  type ApiSandbox,
  type ApiSandboxExec,
  commandSandbox,
  createSandbox,
  endedExec,
  getSandbox,
  machineOf,
  machinesOf,
  outputOf,
  removeSandbox,
  sandboxPath,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

test('an agent that dies leaves its sandboxes running, and their commands lose nothing', async (t) => {
  const stack = await Stack.start(sandboxSettings());
  t.teardown(() => stack.stop());
  const api = await stack.newClient();
  const { sandbox_id: id } = await createSandbox(api);
  const boot = await outputOf(api, id, 'cat /proc/sys/kernel/random/boot_id');
  const execs = `${sandboxPath(id)}/execs`;
  // More than the guest keeps for a command: it waits for the next agent.
  const command = 'seq 800000 > /tmp/all; sleep 2; cat /tmp/all; sleep 1; tail -1 /tmp/all >&2';
  const counting = await api.data<ApiSandboxExec>('POST', execs, { command });
  const short = await api.data<ApiSandboxExec>('POST', execs, {
    command: 'sleep 1; echo ended; exit 7',
  });
  const [machine] = await machinesOf([id]);
  for (const signal of ['SIGKILL', 'SIGTERM', 'SIGKILL'] as const) {
    await stack.agent.stop(signal);
    t.deepEqual(await machinesOf([id]), [machine]);
    t.is((await commandSandbox(api, id, 'stop')).status, 503);
    await stack.startAgent();
    await waitFor('the host', async () => (await commandSandbox(api, id, 'start')).status === 200);
    t.is((await getSandbox(api, id)).status, 'running');
  }
  const ended = await endedExec(api, id, short.exec_id);
  t.like(ended, { status: 'completed', exit_code: 7, stdout: 'ended\n' });
  const counted = await endedExec(api, id, counting.exec_id);
  t.like(counted, { status: 'completed', stderr: '800000\n' });
  const all = Array.from({ length: 800_000 }, (_, index) => `${index + 1}\n`).join('');
  t.true(counted.stdout === all);
  t.is(await outputOf(api, id, 'cat /proc/sys/kernel/random/boot_id'), boot);
  await removeSandbox(api, id);
});

test('ends without an agent are reported with their cause and time', async (t) => {
  const stack = await Stack.start(sandboxSettings());
  t.teardown(() => stack.stop());
  const api = await stack.newClient();
  const [off, crashed] = [await createSandbox(api), await createSandbox(api)];
  const busy = await createSandbox(api);
  await outputOf(api, crashed.sandbox_id, 'echo kept > /root/kept; sync');
  await api.call('POST', `${sandboxPath(off.sandbox_id)}/execs`, {
    command: 'sleep 3; kill -TERM 1',
  });
  const short = await api.data<ApiSandboxExec>('POST', `${sandboxPath(busy.sandbox_id)}/execs`, {
    command: 'sleep 1; date +%s%3N; exit 7',
  });
  const begunAt = Date.now();
  await stack.agent.stop('SIGKILL');
  const victim = await machineOf(crashed.sandbox_id);
  const killedAt = Date.now();
  process.kill(victim, 'SIGKILL');
  await sleep(8_000);
  const returnedAt = Date.now();
  await stack.startAgent();
  await waitFor(
    'the host',
    async () => (await commandSandbox(api, crashed.sandbox_id, 'stop')).status === 200,
  );
  const ended = await endedExec(api, busy.sandbox_id, short.exec_id);
  t.like(ended, { status: 'completed', exit_code: 7 });
  const finishedAt = Date.parse(ended.finished_at ?? '');
  t.true(Math.abs(finishedAt - Number(ended.stdout)) < 1500);
  t.is(ended.execute_time_ms, finishedAt - Date.parse(ended.started_at));
  await waitFor('the end to be seen', async () => {
    return (await getSandbox(api, off.sandbox_id)).status !== 'running';
  });
  t.like(await getSandbox(api, off.sandbox_id), {
    status: 'exited',
    exit_reason: 'guest_shutdown',
  });
  t.like(await settledSandbox(api, crashed.sandbox_id), {
    status: 'failed',
    exit_reason: 'vmm_crashed',
  });
  const endOf = async (id: string): Promise<number> =>
    Date.parse((await getSandbox(api, id)).finished_at ?? '');
  t.true(Math.abs((await endOf(crashed.sandbox_id)) - killedAt) < 1500);
  // The sandbox was to end three seconds after the command began, and took up to two more.
  t.true((await endOf(off.sandbox_id)) > begunAt + 2000);
  t.true((await endOf(off.sandbox_id)) < returnedAt - 500);
  await commandSandbox(api, crashed.sandbox_id, 'start');
  await settledSandbox(api, crashed.sandbox_id);
  t.is(await outputOf(api, crashed.sandbox_id, 'cat /root/kept'), 'kept\n');
  for (const { sandbox_id: id } of [off, crashed, busy]) await removeSandbox(api, id);
});

test('an emptied directory regains every sandbox and its name', async (t) => {
  const stack = await Stack.start(sandboxSettings());
  t.teardown(() => stack.stop());
  const api = await stack.newClient();
  const running = await createSandbox(api, { name: 'one' });
  const stopped = await createSandbox(api, { name: 'two' });
  await commandSandbox(api, stopped.sandbox_id, 'stop');
  await settledSandbox(api, stopped.sandbox_id);
  const redis = await stack.redisClient();
  for (const key of await redis.keys('*sandbox*')) await redis.del(key);
  t.is((await api.call('GET', sandboxPath(running.sandbox_id))).status, 404);
  const list = (): Promise<{ sandboxes: ApiSandbox[] }> => api.data('GET', '/api/sandboxes');
  await waitFor('the sandboxes', async () => (await list()).sandboxes.length === 2);
  t.deepEqual(
    (await list()).sandboxes.map(({ name, status }) => [name, status]),
    [
      ['one', 'running'],
      ['two', 'stopped'],
    ],
  );
  const taken = await api.call('POST', '/api/sandboxes', { name: 'two' });
  t.deepEqual([taken.status, taken.body.code], [409, 'sandbox_name_conflict']);
  t.is(await outputOf(api, running.sandbox_id, 'echo here'), 'here\n');
  for (const { sandbox_id: id } of [running, stopped]) await removeSandbox(api, id);
});

test('a host accepts no more sandboxes than it has capacity for', async (t) => {
  const stack = await Stack.start({ ...sandboxSettings(), SANDBOX_MEMORY_MIB: '1000' });
  t.teardown(() => stack.stop());
  const api = await stack.newClient();
  const first = await createSandbox(api);
  const [second, refused] = await Promise.all(
    [1, 2].map(() => api.call('POST', '/api/sandboxes', { mem_size_mib: 256 })),
  );
  t.deepEqual(
    [second?.status ?? 0, refused?.status ?? 0].sort((a, b) => a - b),
    [202, 503],
  );
  const no = second?.status === 503 ? second : refused;
  t.is(no?.body.code, 'no_capacity');
  t.truthy(no?.headers.get('retry-after'));
  // Stopping a sandbox frees capacity, and starting it needs capacity again.
  await commandSandbox(api, first.sandbox_id, 'stop');
  await settledSandbox(api, first.sandbox_id);
  const third = await createSandbox(api);
  const start = await commandSandbox(api, first.sandbox_id, 'start');
  t.deepEqual([start.status, start.body.code], [503, 'no_capacity']);
  t.is((await getSandbox(api, first.sandbox_id)).status, 'stopped');
  await removeSandbox(api, third.sandbox_id);
  t.is((await commandSandbox(api, first.sandbox_id, 'start')).status, 200);
  t.is((await commandSandbox(api, randomUUID(), 'start')).status, 404);
});
