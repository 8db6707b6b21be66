/* Sandboxes that have run or idled for as long as they may are paused, never early. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiClient, ApiReply } from '../helpers/api.ts';
import {
  type ApiSandbox,
  type ApiSandboxExec,
  bring,
  commandSandbox,
  createSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
  sandboxPath,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const WAIT_MS_MAX = 120_000;

const test = stackTest(sandboxSettings());

const setTimes = (
  api: ApiClient,
  id: string,
  body: Readonly<Record<string, unknown>>,
): Promise<ApiReply<{ data: ApiSandbox; code: string; error: string }>> =>
  api.call('POST', `${sandboxPath(id)}/timeout`, body);

/** Waits until it is paused. @returns when that was seen */
async function untilPaused(api: ApiClient, id: string): Promise<number> {
  const isPaused = async (): Promise<boolean> => (await getSandbox(api, id)).status === 'paused';
  await waitFor('the pause', isPaused, WAIT_MS_MAX);
  return Date.now();
}

test('a sandbox is paused at its max TTL, and a resume begins a new session', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id, running_at } = await createSandbox(api, { max_ttl_seconds: 60 });
  // Use makes no difference to the max TTL.
  await api.data('POST', `${sandboxPath(id)}/execs`, { command: 'sleep 1000' });
  await outputOf(api, id, 'echo memory > /run/kept');
  t.true((await untilPaused(api, id)) >= Date.parse(running_at ?? '') + 60_000);
  await bring(api, id, 'resume', 'running');
  t.is(await outputOf(api, id, 'cat /run/kept'), 'memory\n');
  await removeSandbox(api, id);
});

test('setting a new timeout counts from now and shows; a session lasts at most a day', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const long = await setTimes(api, id, { timeout: 86_400 });
  t.deepEqual([long.status, long.body.code], [400, 'bad_request']);
  const from = Date.now();
  const { status, body } = await setTimes(api, id, { timeout: 60 });
  t.deepEqual([status, body.data.max_ttl_seconds, body.data.status], [200, 60, 'running']);
  t.true((await untilPaused(api, id)) >= from + 60_000);
  t.is((await setTimes(api, id, { timeout: 86_400 })).body.data.max_ttl_seconds, 86_400);
  await removeSandbox(api, id);
});

test('a sandbox that is idle for too long is paused; a running command keeps it', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { idle_ttl_seconds: 4 });
  const exec = await api.data<ApiSandboxExec>('POST', `${sandboxPath(id)}/execs`, {
    command: 'sleep 8',
  });
  await untilPaused(api, id);
  const path = `${sandboxPath(id)}/execs/${exec.exec_id}`;
  const { status, finished_at } = await api.data<ApiSandboxExec & { finished_at: string }>(
    'GET',
    path,
  );
  t.is(status, 'completed');
  t.true(Date.now() >= Date.parse(finished_at) + 4000);
  await bring(api, id, 'resume', 'running');
  t.true(
    (await untilPaused(api, id)) >= Date.parse((await getSandbox(api, id)).running_at ?? '') + 4000,
  );
  const off = await setTimes(api, id, { idle_ttl_seconds: 0 });
  t.deepEqual([off.status, off.body.data.status], [200, 'paused']);
  t.is(off.body.data.idle_ttl_seconds, 0);
  await bring(api, id, 'resume', 'running');
  await sleep(6000);
  t.is((await getSandbox(api, id)).status, 'running');
  await removeSandbox(api, id);
});

test('time limits outlive agents', async (t) => {
  const stack = await Stack.start(sandboxSettings());
  t.teardown(() => stack.stop());
  const api = await stack.newClient();
  const idle = await createSandbox(api, { idle_ttl_seconds: 10 });
  const busy = await createSandbox(api);
  const from = Date.now();
  t.is((await setTimes(api, busy.sandbox_id, { timeout: 60 })).status, 200);
  t.is((await setTimes(api, idle.sandbox_id, { idle_ttl_seconds: 10 })).status, 200);
  await stack.agent.stop('SIGKILL');
  await sleep(12_000);
  await stack.startAgent();
  // A limit that passed in the meantime is acted on at once.
  t.true((await untilPaused(api, idle.sandbox_id)) >= from + 10_000);
  await waitFor('the host', async () => {
    const { status } = await commandSandbox(api, busy.sandbox_id, 'start');
    return status === 200;
  });
  await stack.agent.stop('SIGTERM');
  await stack.startAgent();
  t.true((await untilPaused(api, busy.sandbox_id)) >= from + 60_000);
});
