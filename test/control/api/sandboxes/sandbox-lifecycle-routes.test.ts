/* Control's jobs for a sandbox's host, and its use of the answers. */
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import type { Sandboxes } from '../../../../shared/directory/sandboxes.ts';
import { AppError, type ErrorCode } from '../../../../shared/errors.ts';
import { newDiskId, newSandboxId } from '../../../../shared/ids.ts';
import type { JobEnvelope, JobKind } from '../../../../shared/jobs/jobs.ts';
import { NO_SANDBOXES } from '../../../../shared/links/stream-protocol.ts';
import { API_LIMITS } from '../../../../control/api/limits.ts';
import { SCHEMA_LIMITS } from '../../../../shared/schemas/limits.ts';
import type { Sandbox } from '../../../../shared/schemas/sandbox.ts';
import type { SandboxRecord } from '../../../../shared/schemas/sandbox-record.ts';
import { ApiClient } from '../../../helpers/api.ts';
import { newName } from '../../../helpers/disks.ts';
import { sandboxRecord } from '../../../helpers/sandbox-records.ts';
import { ScriptedHost } from '../../../helpers/scripted-host.ts';
import { Stack } from '../../../helpers/stack.ts';
import { waitFor } from '../../../helpers/wait.ts';

interface Context {
  stack: Stack;
  sandboxes: Sandboxes;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  t.context.stack = await Stack.start();
  t.context.sandboxes = (await t.context.stack.openDirectory()).sandboxes;
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** A sandbox of a new account, on a host of its own. */
async function newSandbox(
  t: ExecutionContext<Context>,
): Promise<{ api: ApiClient; host: ScriptedHost; sandbox: SandboxRecord; path: string }> {
  const { stack, sandboxes } = t.context;
  const { accounts, apiKeys } = await stack.openDirectory();
  const account = await accounts.create(newName());
  const { token } = await apiKeys.create(account, { name: 'test' });
  const host = await ScriptedHost.link(stack);
  t.teardown(() => host.close());
  const sandbox = sandboxRecord({ accountId: account.id, hostId: host.hostId, state: 'running' });
  await sandboxes.publish(sandbox);
  const api = new ApiClient(stack.baseUrl, token);
  return { api, host, sandbox, path: `/api/sandboxes/${sandbox.id}` };
}

const payloadsOf = ({ jobs }: ScriptedHost, kind: JobKind): object[] =>
  jobs.filter((job) => job.kind === kind).map(({ payload }) => payload);

/** The sandbox that a fork was to come to. */
function childOf(parent: SandboxRecord, { payload }: JobEnvelope): SandboxRecord {
  const { childId: id, name } = payload as JobEnvelope<'sandbox.fork'>['payload'];
  const { accountId, hostId, config } = parent;
  const state = 'pending_resume';
  return sandboxRecord({ id, accountId, hostId, state, config: { ...config, name } });
}

test('an action goes to the host of the sandbox, and the answer shows the state that the host reports', async (t) => {
  const { api, host, sandbox, path } = await newSandbox(t);
  const { id: sandboxId, accountId } = sandbox;
  host.script = () => Promise.resolve({ sandbox: { ...sandbox, state: 'pausing' } });
  for (const action of ['pause', 'resume', 'stop', 'start']) {
    for (const query of ['', '?wait=false', '?wait=true']) {
      const reply = await api.call<{ data: Sandbox }>('POST', `${path}/${action}${query}`);
      t.is(reply.status, 200);
      t.like(reply.body.data, { sandbox_id: sandboxId, status: 'pausing' });
      const isBrief = query === '' && action === 'stop';
      const unasked = isBrief ? API_LIMITS.sandboxBriefWaitMs : 0;
      const waitMs = query === '?wait=true' ? SCHEMA_LIMITS.sandboxWaitMsMax : unasked;
      t.deepEqual(host.jobs.at(-1)?.payload, { sandboxId, accountId, action, waitMs });
    }
  }
});

test('a refusal of the lifecycle reaches the caller with its code', async (t) => {
  const { api, host, path } = await newSandbox(t);
  const refusals = [
    ['pause', 'sandbox_start_conflict', 409],
    ['resume', 'sandbox_pausing', 409],
    ['resume', 'no_capacity', 503],
    ['fork', 'sandbox_stopping', 409],
    ['fork', 'sandbox_terminated', 409],
    ['fork', 'no_capacity', 503],
  ] as const;
  for (const [command, code, status] of refusals) {
    host.script = () => Promise.reject(new AppError(code, `for the test: ${code}`));
    const reply = await api.call('POST', `${path}/${command}`);
    t.like(reply, { status, body: { success: false, code, error: `for the test: ${code}` } });
    t.is(reply.headers.get('retry-after'), status === 503 ? '2' : null);
  }
  t.deepEqual(payloadsOf(host, 'sandbox.discard'), [], 'nothing may be there');
});

test('calls that start a sandbox are refused with the codes that clients wait out', async (t) => {
  const { api, host, path } = await newSandbox(t);
  const refuse = async (action: string, code: ErrorCode): Promise<string | undefined> => {
    host.script = () => Promise.reject(new AppError(code, `for the test: ${code}`));
    const reply = await api.call('POST', `${path}/${action}`);
    t.like(reply, { status: 503, body: { error: `for the test: ${code}` } });
    t.is(reply.headers.get('retry-after'), '2');
    return reply.body.code;
  };
  for (const action of ['start', 'resume', 'fork']) {
    t.is(await refuse(action, 'unavailable'), 'runtime_retryable', action);
    t.is(await refuse(action, 'host_full'), 'no_capacity', action);
  }
  t.is(await refuse('stop', 'unavailable'), 'unavailable', 'clients do not wait this out');
  t.is(await refuse('pause', 'host_full'), 'host_full');
});

test('a fork answers with the copy, named as asked or at random', async (t) => {
  const { api, host, sandbox, path } = await newSandbox(t);
  const { id: sandboxId, accountId } = sandbox;
  host.script = (job) => Promise.resolve({ sandbox: childOf(sandbox, job) });
  const fork = async (query: string, body?: object): Promise<Sandbox> => {
    const reply = await api.call<{ data: Sandbox }>('POST', `${path}/fork${query}`, body);
    t.is(reply.status, 202);
    return reply.body.data;
  };
  const named = await fork('?wait=true', { name: 'copy', checkpoint: 'a-checkpoint' });
  t.like(named, { name: 'copy', status: 'pending' });
  t.not(named.sandbox_id, sandboxId);
  const unnamed = await fork('');
  t.regex(unnamed.name, /^[a-z]+-[a-z]+-\d{4}$/u);
  t.deepEqual(payloadsOf(host, 'sandbox.fork'), [
    {
      ...{ accountId, sandboxId, childId: named.sandbox_id, name: 'copy' },
      ...{ checkpoint: 'a-checkpoint', mayMount: true, waitMs: SCHEMA_LIMITS.sandboxWaitMsMax },
    },
    {
      ...{ accountId, sandboxId, childId: unnamed.sandbox_id, name: unnamed.name },
      ...{ mayMount: true, waitMs: 0 },
    },
  ]);
});

test('an image that no host builds for callers is refused before any host is asked', async (t) => {
  const { api } = await newSandbox(t);
  const sandboxes = { ...NO_SANDBOXES, isEnabled: true };
  const host = await ScriptedHost.link(t.context.stack, { load: { sandboxes } });
  t.teardown(() => host.close());
  const refused = await api.call('POST', '/api/sandboxes', { base_image: 'registry.example/one' });
  t.like(refused, { status: 503, body: { code: 'not_enabled' } });
  t.regex((refused.body as { error: string }).error, /image/u);
  t.deepEqual(host.jobs, []);
});

test('a name that the account has is refused before the host is asked', async (t) => {
  const { api, host, sandbox, path } = await newSandbox(t);
  const { name } = sandbox.config;
  const taken = await api.call('POST', `${path}/fork`, { name });
  t.like(taken, { status: 409, body: { code: 'sandbox_name_conflict' } });
  t.deepEqual(host.jobs, []);
});

test('the name of a fork that failed is free at once', async (t) => {
  const { api, host, sandbox, path } = await newSandbox(t);
  host.script = () => Promise.reject(new AppError('no_capacity', 'no room'));
  const refused = await api.call('POST', `${path}/fork`, { name: 'copy' });
  t.is(refused.body.code, 'no_capacity');
  host.script = (job) => Promise.resolve({ sandbox: childOf(sandbox, job) });
  t.is((await api.call('POST', `${path}/fork`, { name: 'copy' })).status, 202);
});

test('a name that another call has claimed can be waited for', async (t) => {
  const { sandboxes } = t.context;
  const { api, host, sandbox, path } = await newSandbox(t);
  const { accountId } = sandbox;
  const claimed = { accountId, sandboxId: newSandboxId(), name: 'copy' };
  await sandboxes.claim(claimed, API_LIMITS.sandboxClaimMs);
  const reply = await api.call('POST', `${path}/fork`, { name: 'copy' });
  t.like(reply, { status: 503, body: { code: 'runtime_retryable' } });
  t.deepEqual(host.jobs, []);
  host.script = (job) => Promise.resolve({ sandbox: childOf(sandbox, job) });
  const waiting = api.call('POST', `${path}/fork`, { name: 'copy' });
  await sleep(100);
  await sandboxes.releaseClaim(claimed);
  t.is((await waiting).status, 202);
});

test('of many creations of one name at the same time one succeeds, and the others are told so', async (t) => {
  const { sandboxes } = t.context;
  const { api, host, sandbox, path } = await newSandbox(t);
  host.script = async (job) => {
    const child = childOf(sandbox, job);
    await sleep(200);
    await sandboxes.publish(child);
    return { sandbox: child };
  };
  const replies = await Promise.all(
    Array.from({ length: 5 }, () => api.call('POST', `${path}/fork`, { name: 'copy' })),
  );
  t.deepEqual(
    replies.map(({ status }) => status).toSorted((a, b) => a - b),
    [202, 409, 409, 409, 409],
  );
});

test('with an Idempotency-Key a sandbox is forked once', async (t) => {
  const { api, host, sandbox, path } = await newSandbox(t);
  host.script = (job) => Promise.resolve({ sandbox: childOf(sandbox, job) });
  const headers = { 'idempotency-key': newName() };
  const fork = (body: object) => api.call('POST', `${path}/fork`, body, headers);
  const replies = await Promise.all([fork({}), fork({})]);
  t.deepEqual(
    replies.map(({ status }) => status),
    [202, 202],
  );
  t.deepEqual(replies[0]?.body, replies[1]?.body);
  t.is(host.jobs.length, 1);
  t.is((await fork({ name: 'copy' })).body.code, 'idempotency_conflict');
});

test('a fork whose host is lost succeeds if the host had published the copy', async (t) => {
  const { sandboxes } = t.context;
  const { api, host, sandbox, path } = await newSandbox(t);
  host.script = async (job) => {
    await sandboxes.publish(childOf(sandbox, job));
    host.breakLink();
    return {};
  };
  const reply = await api.call<{ data: Sandbox }>('POST', `${path}/fork`, { name: 'copy' });
  t.is(reply.status, 202);
  t.is(reply.body.data.name, 'copy');
  t.deepEqual(payloadsOf(host, 'sandbox.discard'), []);
});

test('a fork whose host is lost is discarded if the copy was not published', async (t) => {
  const { api, host, sandbox, path } = await newSandbox(t);
  host.script = (job) => {
    if (job.kind === 'sandbox.fork') host.breakLink();
    return Promise.resolve({});
  };
  const reply = await api.call('POST', `${path}/fork`, { name: 'copy' });
  t.like(reply, { status: 503, body: { code: 'runtime_retryable' } });
  t.is(reply.headers.get('retry-after'), '2');
  const discarded = await waitFor('the copy to be taken back', async () => {
    const [payload] = payloadsOf(host, 'sandbox.discard');
    return payload;
  });
  const [fork] = payloadsOf(host, 'sandbox.fork') as { childId: string }[];
  t.deepEqual(discarded, { accountId: sandbox.accountId, sandboxId: fork?.childId });
});

test('the name of a fork that is being undone can be waited for, and is free then', async (t) => {
  const { sandboxes } = t.context;
  const { api, host, sandbox, path } = await newSandbox(t);
  const undoIt = Promise.withResolvers<void>();
  let failed: SandboxRecord | undefined;
  host.script = async (job) => {
    if (job.kind === 'sandbox.fork') {
      failed = childOf(sandbox, job);
      await sandboxes.publish(failed);
      throw new AppError('unavailable', 'the disk was lost');
    }
    await undoIt.promise;
    if (failed !== undefined) {
      await sandboxes.remove({
        ...{ accountId: failed.accountId, sandboxId: failed.id, name: failed.config.name },
      });
    }
    return {};
  };
  const fork = () => api.call('POST', `${path}/fork`, { name: 'copy' });
  const unavailable = { status: 503, body: { code: 'runtime_retryable' } };
  t.like(await fork(), unavailable);
  t.like(await fork(), unavailable, 'its own failed creation is no conflict');
  await waitFor('the host to be told', () =>
    Promise.resolve(payloadsOf(host, 'sandbox.discard').length > 0),
  );
  undoIt.resolve();
  host.script = async (job) => {
    const child = childOf(sandbox, job);
    await sandboxes.publish(child);
    return { sandbox: child };
  };
  await waitFor('the name to be free', async () => (await fork()).status === 202);
  t.is((await fork()).body.code, 'sandbox_name_conflict');
});

test('time limits go to the host; an omitted limit stays as it is', async (t) => {
  const { api, host, sandbox, path } = await newSandbox(t);
  const { id: sandboxId, accountId, config } = sandbox;
  const changed = { ...config, maxTtlSeconds: 3600, idleTtlSeconds: 60 };
  host.script = () => Promise.resolve({ sandbox: { ...sandbox, config: changed } });
  const cases: [body: object, job: object][] = [
    [{ timeout: 3600 }, { timeoutSeconds: 3600 }],
    [{ idle_ttl_seconds: 0 }, { idleTtlSeconds: 0 }],
    [
      { timeout: 60, idle_ttl_seconds: 86_400 },
      { timeoutSeconds: 60, idleTtlSeconds: 86_400 },
    ],
  ];
  for (const [body, job] of cases) {
    const reply = await api.call<{ data: Sandbox }>('POST', `${path}/timeout`, body);
    t.is(reply.status, 200);
    t.like(reply.body.data, { max_ttl_seconds: 3600, idle_ttl_seconds: 60 });
    t.deepEqual(host.jobs.at(-1)?.payload, { accountId, sandboxId, ...job });
  }
  host.script = () => Promise.reject(new AppError('bad_request', 'longer than a day'));
  t.is((await api.call('POST', `${path}/timeout`, { timeout: 86_400 })).status, 400);
});

test('a sandbox with forks is not deleted, and the caller is told which ones to delete first', async (t) => {
  const { api, host, path } = await newSandbox(t);
  const diskIds = Array.from({ length: 10 }, newDiskId);
  host.script = () => Promise.resolve({ dependentForks: { count: 12, diskIds } });
  const refused = await api.call('DELETE', path);
  t.is(refused.status, 409);
  t.like(refused.body, {
    success: false,
    code: 'sandbox_has_forks',
    child_disk_count: 12,
    child_disk_ids: diskIds,
  });
  t.regex(refused.body.error, /dependent forks: 12\b/u);
  t.true(refused.body.error.endsWith(diskIds.join(', ')));
  host.script = () => Promise.resolve({});
  t.is((await api.call('DELETE', path)).status, 204);
});

test('a deletion refused for another reason names no forks', async (t) => {
  const { api, host, path } = await newSandbox(t);
  host.script = () => Promise.reject(new AppError('sandbox_not_stopped', 'it runs'));
  const { body } = await api.call('DELETE', path);
  t.deepEqual({ ...body }, { success: false, error: 'it runs', code: 'sandbox_not_stopped' });
});
