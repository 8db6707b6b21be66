/* Pause and resume with real virtual machines; most tests share one stack. */
import assert from 'node:assert';
import type { ApiClient } from '../helpers/api.ts';
import {
  type ApiSandbox,
  type ApiSandboxExec,
  bring,
  commandSandbox,
  createSandbox,
  endedExec,
  getSandbox,
  machinesOf,
  outputOf,
  removeSandbox,
  sandboxPath,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { beginCounting, lastCount } from '../helpers/counting.ts';
import { waitFor } from '../helpers/wait.ts';

const test = stackTest(sandboxSettings());

/** Starts a counter that keeps its count in memory only, in a file on a tmpfs. */
const COUNTER = beginCounting('/run/count', 0.05);
const readCount = async (api: ApiClient, id: string): Promise<number> =>
  Number(await outputOf(api, id, lastCount('/run/count')));

async function startCounter(api: ApiClient, id: string): Promise<void> {
  await outputOf(api, id, COUNTER);
  await outputOf(api, id, 'until test -s /run/count; do sleep 0.1; done');
}

test('processes survive repeated pauses, and a paused sandbox has no machine on the host', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id, checkpoint, running_at: first } = await createSandbox(api);
  t.is(checkpoint, undefined);
  await startCounter(api, id);
  const name = await outputOf(api, id, 'hostname');
  const checkpoints = new Set<string | undefined>();
  for (let round = 0; round < 3; round += 1) {
    const before = await readCount(api, id);
    const paused = await bring(api, id, 'pause', 'paused');
    checkpoints.add(paused.checkpoint);
    t.is(paused.finished_at, undefined);
    t.deepEqual(await machinesOf([id]), []);
    const refused = await api.call('POST', `${sandboxPath(id)}/execs`, { command: 'true' });
    t.deepEqual([refused.status, refused.body.code], [409, 'sandbox_not_running']);
    t.is((await bring(api, id, 'pause', 'paused')).checkpoint, paused.checkpoint);
    const resumed = await bring(api, id, 'resume', 'running');
    t.is(resumed.checkpoint, undefined);
    t.true((resumed.running_at ?? '') > (first ?? ''));
    await waitFor('it to count on', async () => (await readCount(api, id)) > before);
  }
  t.is(checkpoints.size, 3);
  t.false(checkpoints.has(undefined));
  t.is(await outputOf(api, id, 'hostname'), name);
  await removeSandbox(api, id);
});

test('a pause cancels running commands; detached children live on', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await startCounter(api, id);
  const exec = await api.data<ApiSandboxExec>('POST', `${sandboxPath(id)}/execs`, {
    command: 'echo begun; sleep 1000',
  });
  await waitFor('its output', async () => {
    const path = `${sandboxPath(id)}/execs/${exec.exec_id}`;
    return (await api.data<ApiSandboxExec>('GET', path)).stdout === 'begun\n';
  });
  await bring(api, id, 'pause', 'paused');
  t.like(await endedExec(api, id, exec.exec_id), {
    status: 'cancelled',
    stdout: 'begun\n',
    exit_reason: 'the sandbox was paused',
  });
  await bring(api, id, 'resume', 'running');
  t.is(
    await outputOf(api, id, "pgrep -xc sleep.1000 || true; pgrep -fc 'sleep 100[0]' || true"),
    '0\n0\n',
  );
  const count = await readCount(api, id);
  await waitFor('it to count on', async () => (await readCount(api, id)) > count);
  await removeSandbox(api, id);
});

test('starting a paused sandbox discards its memory and keeps its disk', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await outputOf(api, id, 'echo disk > /root/kept; echo memory > /run/gone; sync');
  await bring(api, id, 'pause', 'paused');
  const started = await bring(api, id, 'start', 'running');
  t.is(started.checkpoint, undefined);
  await outputOf(api, id, 'grep disk /root/kept && test ! -e /run/gone');
  const resumed = await commandSandbox(api, id, 'resume');
  t.deepEqual([resumed.status, resumed.body.data.running_at], [200, started.running_at]);
  await removeSandbox(api, id);
});

test('stopping a paused sandbox discards its memory', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await outputOf(api, id, 'echo memory > /run/gone');
  const { checkpoint } = await bring(api, id, 'pause', 'paused');
  const busy = await api.call('DELETE', sandboxPath(id));
  t.deepEqual([busy.status, busy.body.code], [409, 'sandbox_not_stopped']);
  const stop = await commandSandbox(api, id, 'stop');
  t.like(stop.body.data, { status: 'stopped', exit_reason: 'stopped' });
  t.truthy(stop.body.data.finished_at);
  t.truthy(stop.body.data.checkpoint);
  t.not(stop.body.data.checkpoint, checkpoint);
  const resume = await commandSandbox(api, id, 'resume');
  t.deepEqual([resume.status, resume.body.code], [409, 'sandbox_terminated']);
  t.is((await bring(api, id, 'pause', 'stopped')).status, 'stopped');
  await bring(api, id, 'start', 'running');
  await outputOf(api, id, 'test ! -e /run/gone');
  await removeSandbox(api, id);
});

test('a sandbox that is being resumed can be stopped', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await outputOf(api, id, 'echo disk > /root/kept; sync');
  await bring(api, id, 'pause', 'paused');
  await commandSandbox(api, id, 'resume');
  await commandSandbox(api, id, 'stop');
  t.is((await settledSandbox(api, id)).status, 'stopped');
  await bring(api, id, 'start', 'running');
  t.is(await outputOf(api, id, 'cat /root/kept'), 'disk\n');
  await removeSandbox(api, id);
});

test('paused sandboxes stay paused when agents die', async (t) => {
  const stack = await Stack.start(sandboxSettings());
  t.teardown(() => stack.stop());
  const api = await stack.newClient();
  const { sandbox_id: id } = await createSandbox(api);
  await startCounter(api, id);
  const count = await readCount(api, id);
  const { checkpoint } = await bring(api, id, 'pause', 'paused');
  for (const signal of ['SIGKILL', 'SIGTERM'] as const) {
    await stack.agent.stop(signal);
    await stack.startAgent();
    await waitFor('the host', async () => (await commandSandbox(api, id, 'pause')).status === 200);
    t.like(await getSandbox(api, id), { status: 'paused', checkpoint });
  }
  await bring(api, id, 'resume', 'running');
  t.true((await readCount(api, id)) >= count);
});

test('an agent pauses its running sandboxes on SIGPWR', async (t) => {
  const stack = await Stack.start(sandboxSettings());
  t.teardown(() => stack.stop());
  const api = await stack.newClient();
  const { sandbox_id: running } = await createSandbox(api);
  const { sandbox_id: stopped } = await createSandbox(api);
  await startCounter(api, running);
  await bring(api, stopped, 'stop', 'stopped');
  const count = await readCount(api, running);
  await stack.agent.stop('SIGPWR');
  t.deepEqual(await machinesOf([running, stopped]), []);
  await stack.startAgent();
  await waitFor(
    'the host',
    async () => (await commandSandbox(api, running, 'pause')).status === 200,
  );
  const { sandboxes } = await api.data<{ sandboxes: ApiSandbox[] }>('GET', '/api/sandboxes');
  const statusOf = (id: string): string | undefined =>
    sandboxes.find((sandbox) => sandbox.sandbox_id === id)?.status;
  t.deepEqual([statusOf(running), statusOf(stopped)], ['paused', 'stopped']);
  await bring(api, running, 'resume', 'running');
  const now = await readCount(api, running);
  assert(now >= count);
  await waitFor('it to count on', async () => (await readCount(api, running)) > now);
});
