/* Forks of running, paused and stopped sandboxes: real virtual machines, one stack for all. */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiClient } from '../helpers/api.ts';
import {
  type ApiSandbox,
  beginExec,
  bring,
  createSandbox,
  findSandbox,
  forkSandbox,
  getSandbox,
  machineOf,
  outputOf,
  removeSandbox,
  runsMachines,
  sandboxPath,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const test = stackTest(sandboxSettings());
const testOfMachines = runsMachines ? test : test.skip;

const fork = (api: ApiClient, id: string, body: Readonly<Record<string, unknown>> = {}) =>
  api.call('POST', `${sandboxPath(id)}/fork`, body);

const write = (api: ApiClient, id: string, text: string): Promise<string> =>
  outputOf(api, id, `echo ${text} > /root/disk; echo ${text} > /run/memory; sync`);
const read = (api: ApiClient, id: string): Promise<string> =>
  outputOf(api, id, 'cat /root/disk; cat /run/memory 2>/dev/null || echo none');

testOfMachines(
  'a fork of a running sandbox continues from its memory, independently of the source',
  async (t) => {
    const { api } = t.context;
    const parent = await createSandbox(api, { env: { COLOUR: 'blue' }, idle_ttl_seconds: 3600 });
    const id = parent.sandbox_id;
    await write(api, id, 'one');
    const child = await forkSandbox(api, id, { name: 'forked' });
    t.like(child, { name: 'forked', idle_ttl_seconds: 3600 });
    t.is((await getSandbox(api, id)).running_at, parent.running_at);
    t.is(await read(api, child.sandbox_id), 'one\none\n');
    await Promise.all([write(api, id, 'two'), write(api, child.sandbox_id, 'three')]);
    t.is(await read(api, id), 'two\ntwo\n');
    t.is(await read(api, child.sandbox_id), 'three\nthree\n');
    t.is(await outputOf(api, child.sandbox_id, 'hostname; echo $COLOUR'), 'forked\nblue\n');
    const ids =
      'cat /etc/machine-id /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -An -tx1';
    const own = (await outputOf(api, id, ids)).split('\n').filter((line) => line !== '');
    const its = (await outputOf(api, child.sandbox_id, ids)).split('\n');
    t.true(own.every((line) => !its.includes(line)));
    await removeSandbox(api, child.sandbox_id);
    await removeSandbox(api, id);
  },
);

test('a fork of a paused sandbox has its memory, and the source stays paused', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await write(api, id, 'one');
  const { checkpoint } = await bring(api, id, 'pause', 'paused');
  const other = await fork(api, id, { checkpoint: randomUUID() });
  t.deepEqual([other.status, other.body.code], [409, 'sandbox_start_conflict']);
  const child = await forkSandbox(api, id, { checkpoint });
  t.like(await getSandbox(api, id), { status: 'paused', checkpoint });
  await write(api, child.sandbox_id, 'two');
  await bring(api, id, 'resume', 'running');
  t.is(await read(api, id), 'one\none\n');
  t.is(await read(api, child.sandbox_id), 'two\ntwo\n');
  await removeSandbox(api, child.sandbox_id);
  await removeSandbox(api, id);
});

test('a fork of a stopped sandbox boots from a copy of its disk', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await write(api, id, 'one');
  const { checkpoint } = await bring(api, id, 'stop', 'stopped');
  const child = await forkSandbox(api, id, { checkpoint });
  t.like(await getSandbox(api, id), { status: 'stopped', checkpoint });
  t.is(await read(api, child.sandbox_id), 'one\nnone\n');
  await write(api, child.sandbox_id, 'two');
  await bring(api, id, 'start', 'running');
  t.is(await read(api, id), 'one\nnone\n');
  await removeSandbox(api, child.sandbox_id);
  await removeSandbox(api, id);
});

testOfMachines(
  'a fork whose source is killed meanwhile is refused for now, and there is no copy',
  async (t) => {
    const { api } = t.context;
    const { sandbox_id: id } = await createSandbox(api, {});
    const machine = await machineOf(id);
    process.kill(machine, 'SIGSTOP'); // The fork waits for it.
    const forking = fork(api, id, { name: 'killed' });
    await sleep(500);
    process.kill(machine, 'SIGKILL');
    const { status, body } = await forking;
    t.deepEqual([status, body.code], [503, 'runtime_retryable']);
    await waitFor(
      'its end to be told',
      async () => (await getSandbox(api, id)).status === 'failed',
    );
    t.is(await findSandbox(api, 'killed'), undefined);
    await removeSandbox(api, id);
  },
);

testOfMachines(
  'a fork is refused for now while guest and monitor are silent; both answer later',
  async (t) => {
    const { api } = t.context;
    const { sandbox_id: id } = await createSandbox(api);
    const machine = await machineOf(id);
    process.kill(machine, 'SIGSTOP');
    const { status, body } = await fork(api, id, { name: 'silent' });
    process.kill(machine, 'SIGCONT');
    t.deepEqual([status, body.code], [503, 'runtime_retryable']);
    t.is(await findSandbox(api, 'silent'), undefined);
    await waitFor('the guest to answer', async () => {
      const { status: begun } = await beginExec(api, id, 'true');
      return begun < 300;
    });
    t.is(await outputOf(api, id, 'echo here'), 'here\n');
    const child = await forkSandbox(api, id);
    await removeSandbox(api, child.sandbox_id);
    await removeSandbox(api, id);
  },
);

test('a sandbox with forks can be deleted only after them', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const { sandbox_id: child } = await forkSandbox(api, id);
  const { sandbox_id: grandchild } = await forkSandbox(api, child);
  for (const each of [id, child, grandchild]) await bring(api, each, 'stop', 'stopped');
  const refused = await api.call('DELETE', sandboxPath(id));
  t.deepEqual([refused.status, refused.body.code], [409, 'sandbox_has_forks']);
  t.regex(refused.body.error, /dependent forks/u);
  const body = refused.body as { child_disk_count?: number; child_disk_ids?: string[] };
  t.is(body.child_disk_count, 2);
  t.is(body.child_disk_ids?.length, 2);
  const [deepest] = body.child_disk_ids ?? [];
  t.is((await getSandbox(api, id)).status, 'stopped');
  t.is((await api.call('DELETE', sandboxPath(child))).status, 409);
  t.is((await api.call('DELETE', sandboxPath(grandchild))).status, 204);
  const again = (await api.call('DELETE', sandboxPath(id))).body as typeof body;
  t.is(again.child_disk_count, 1);
  t.not(again.child_disk_ids?.[0], deepest);
  t.is((await api.call('DELETE', sandboxPath(child))).status, 204);
  t.is((await api.call('DELETE', sandboxPath(id))).status, 204);
});

test('what has ended by itself, or is on its way, is not forked; a name is taken once', async (t) => {
  const { api } = t.context;
  const created = await api.data<ApiSandbox>('POST', '/api/sandboxes', { mem_size_mib: 256 });
  const { sandbox_id: id, name } = created;
  const early = await fork(api, id);
  t.deepEqual([early.status, early.body.code], [409, 'sandbox_start_conflict']);
  await api.call('POST', `${sandboxPath(id)}/stop`);
  await bring(api, id, 'stop', 'stopped');
  const taken = await fork(api, id, { name });
  t.deepEqual([taken.status, taken.body.code], [409, 'sandbox_name_conflict']);
  const child = await forkSandbox(api, id); // Whether it got as far as having a disk or not.
  await removeSandbox(api, child.sandbox_id);
  await removeSandbox(api, id);
  t.is((await fork(api, id)).status, 404);
});
