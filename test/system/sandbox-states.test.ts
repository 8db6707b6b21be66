/*
 * Every action in every state that a sandbox can be brought to, over HTTP: the answers are those of
 * the lifecycle table (shared/sandbox-lifecycle.ts). A machine that is stopped by SIGSTOP keeps its
 * sandbox in a state that would pass.
 */
import assert from 'node:assert';
import { randomUUID } from 'node:crypto';
import { type ExecutionContext } from 'ava';
import {
  type SandboxAction,
  sandboxActions,
  type SandboxState,
  statusOfState,
  verdictOn,
} from '../../shared/sandbox-lifecycle.ts';
import type { ApiClient, ApiReply } from '../helpers/api.ts';
import {
  type ApiSandbox,
  beginExec,
  createSandbox,
  getSandbox,
  machinesOf,
  removeSandbox,
  sandboxPath,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { type StackContext, stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const SETTLED_MS_MAX = 120_000;

const test = stackTest(sandboxSettings());

function call(api: ApiClient, id: string, action: SandboxAction): Promise<ApiReply> {
  const path = sandboxPath(id);
  if (action === 'delete') return api.call('DELETE', path);
  if (action === 'exec') return api.call('POST', `${path}/execs`, { command: 'true' });
  if (action === 'connect') return api.call('POST', `${path}/connections`, {});
  if (action === 'network') return api.call('PUT', `${path}/network`, {});
  if (action === 'snapshot') {
    return api.call('POST', `${path}/snapshots`, { name: `s-${randomUUID()}` });
  }
  return api.call('POST', `${path}/${action}`);
}

/** Tries every action that leaves it in this state. */
async function tryAll(
  t: ExecutionContext<StackContext>,
  id: string,
  state: SandboxState,
): Promise<void> {
  const { api } = t.context;
  for (const action of sandboxActions) {
    const verdict = verdictOn(state, action);
    if (verdict.kind === 'begin') continue;
    const { status, body } = (await call(api, id, action)) as ApiReply<{
      code: string;
      data: ApiSandbox;
    }>;
    const what = `${action} while ${state}: ${status} ${JSON.stringify(body)}`;
    if (verdict.kind === 'refuse') t.deepEqual([status, body.code], [409, verdict.code], what);
    else if (verdict.kind === 'unchanged') t.is(status, 200, what);
    else t.true(status >= 200 && status < 300, what);
    t.is((await getSandbox(api, id)).status, statusOfState(state), what);
    // They keep their source from being deleted.
    if (action === 'fork' && status < 300) await removeCopy(api, body.data);
    if (action === 'snapshot' && status < 300) await removeSnapshot(api, body.data);
  }
}

async function removeCopy(api: ApiClient, copy: ApiSandbox): Promise<void> {
  await settledSandbox(api, copy.sandbox_id);
  await removeSandbox(api, copy.sandbox_id);
}

async function removeSnapshot(api: ApiClient, made: object): Promise<void> {
  const path = `/api/snapshots/${String(Reflect.get(made, 'snapshot_id'))}`;
  const isReady = async (): Promise<boolean> =>
    (await api.data<{ status: string }>('GET', path)).status === 'ready';
  await waitFor('the snapshot', isReady);
  assert.equal((await api.call('DELETE', path)).status, 204);
}

/** Performs an action that ends the state, and waits for the state after it. */
async function begin(
  t: ExecutionContext<StackContext>,
  id: string,
  [from, action, settled]: [SandboxState, SandboxAction, string],
): Promise<void> {
  t.is(verdictOn(from, action).kind, 'begin');
  const { status } = await call(t.context.api, id, action);
  t.is(status, 200, `${action} while ${from}`);
  t.is((await settledSandbox(t.context.api, id)).status, settled);
}

/** Deletes the sandbox and asserts that every action answers 404 then. */
async function removeFrom(
  t: ExecutionContext<StackContext>,
  id: string,
  state: SandboxState,
): Promise<void> {
  t.is(verdictOn(state, 'delete').kind, 'begin');
  t.is((await call(t.context.api, id, 'delete')).status, 204);
  for (const action of sandboxActions) {
    t.is((await call(t.context.api, id, action)).status, 404, `${action} after its deletion`);
  }
}

/** Stops the machine by SIGSTOP, so that the sandbox stays in its state until it is killed. */
async function freezeMachine(id: string): Promise<number> {
  const pid = await waitFor('its machine', async () => (await machinesOf([id]))[0], SETTLED_MS_MAX);
  process.kill(pid, 'SIGSTOP');
  return pid;
}

const endsAs = (api: ApiClient, id: string, status: string): Promise<unknown> =>
  waitFor(status, async () => (await getSandbox(api, id)).status === status, SETTLED_MS_MAX);

test('calls on a pending, stopped, running or stopping sandbox get the documented answer', async (t) => {
  const { api } = t.context;
  const input = { mem_size_mib: 256 };
  const { sandbox_id: id } = await api.data<ApiSandbox>('POST', '/api/sandboxes', input);
  await freezeMachine(id);
  await tryAll(t, id, 'pending_start');
  await begin(t, id, ['pending_start', 'stop', 'stopped']);
  await tryAll(t, id, 'stopped');
  await begin(t, id, ['stopped', 'start', 'running']);
  await tryAll(t, id, 'running');
  await freezeMachine(id);
  const { body } = (await call(api, id, 'stop')) as ApiReply<{ data: ApiSandbox }>;
  t.is(body.data.status, 'stopping');
  await tryAll(t, id, 'stopping');
  t.is((await settledSandbox(api, id)).status, 'stopped');
  await removeFrom(t, id, 'stopped');
});

test('calls on a paused, resuming or pausing sandbox get the documented answer', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await begin(t, id, ['running', 'pause', 'paused']);
  await tryAll(t, id, 'paused');
  t.is((await call(api, id, 'resume')).status, 200);
  const resumed = await freezeMachine(id);
  const { status } = await getSandbox(api, id);
  t.log(`while it was resumed: ${status}`); // The transition may have been over before the SIGSTOP.
  if (status === 'pending') await tryAll(t, id, 'pending_resume');
  process.kill(resumed, 'SIGCONT');
  t.is((await settledSandbox(api, id)).status, 'running');
  const machine = await freezeMachine(id);
  t.is((await call(api, id, 'pause')).status, 200);
  await tryAll(t, id, 'pausing');
  process.kill(machine, 'SIGCONT');
  t.is((await settledSandbox(api, id)).status, 'paused');
  await begin(t, id, ['paused', 'start', 'running']);
  await begin(t, id, ['running', 'pause', 'paused']);
  await begin(t, id, ['paused', 'stop', 'stopped']);
  await removeFrom(t, id, 'stopped');
});

test('calls on an exited sandbox get the documented answer', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const powerOff = async (): Promise<void> => {
    await beginExec(api, id, 'kill -TERM 1');
    await endsAs(api, id, 'exited');
  };
  await powerOff();
  await tryAll(t, id, 'exited');
  await begin(t, id, ['exited', 'start', 'running']);
  await powerOff();
  await removeFrom(t, id, 'exited');
});

test('calls on a failed sandbox get the documented answer', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const crash = async (): Promise<void> => {
    const [pid] = await machinesOf([id]);
    assert(pid !== undefined, 'its machine runs');
    process.kill(pid, 'SIGKILL');
    await endsAs(api, id, 'failed');
  };
  await crash();
  await tryAll(t, id, 'failed');
  await begin(t, id, ['failed', 'start', 'running']);
  await crash();
  await removeFrom(t, id, 'failed');
});
