/* Callers of jobs that their host does not begin or answer in time, with a real queue. */
import { randomUUID } from 'node:crypto';
import test from 'ava';
import { Worker } from 'bullmq';
import { pino } from 'pino';
import { AgentHub } from '../../../control/region/agent-hub.ts';
import { type JobCall, JobDispatch } from '../../../control/region/job-dispatch.ts';
import { NotTaken } from '../../../control/region/not-taken.ts';
import { beginOnHost } from '../../../control/region/begin-on-host.ts';
import { Hosts } from '../../../shared/directory/hosts.ts';
import { queues } from '../../../shared/directory/keys.ts';
import { QueuedJobs } from '../../../shared/directory/queued-jobs.ts';
import { queueConnection } from '../../../shared/directory/redis.ts';
import {
  newAccountId,
  newDiskId,
  newHostId,
  newNodeId,
  newSandboxId,
} from '../../../shared/ids.ts';
import { JobSeal } from '../../../shared/jobs/job-seal.ts';
import { type JobKind, jobKind } from '../../../shared/jobs/jobs.ts';
import { ConnectionSigner } from '../../../shared/links/connection-token.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';

const [clusterId, region] = ['cluster', 'local-test'];
const secrets = ['the-secret-of-the-cluster-of-38-chars-'] as const;
const log = pino({ level: 'silent' });
const accountId = newAccountId();

type Work<K extends JobKind> = Pick<JobCall<K>, 'kind' | 'payload'>;

/** A node, and a host that takes jobs and says of them what the test has it say. */
async function openDispatch() {
  await using opened = new AsyncDisposableStack();
  const { redis } = opened.use(await startRedis());
  const url = `redis://127.0.0.1:${redis.options.port}`;
  const [nodeId, hostId] = [newNodeId(), newHostId()];
  const { publicKeys: connectionKeys } = new ConnectionSigner(['a signing key'], region);
  const hub = new AgentHub({
    ...{ nodeId, clusterId, clusterSecrets: secrets, region, isEncrypted: false, connectionKeys },
    ...{ hosts: new Hosts(redis, region), log },
  });
  opened.defer(() => hub.close());
  const queuedJobs = new QueuedJobs(redis);
  const deps = { hub, nodeId, redis: { url }, queuedJobs, seal: new JobSeal(secrets), log };
  const dispatch = new JobDispatch(deps);
  opened.defer(() => dispatch.close());
  const kept = opened.move();
  const workerOf = (kind: JobKind): Worker => {
    const prefix = queues.prefix(hostId);
    const connection = queueConnection({ url }, { blocking: true, prefix });
    const name = queues[jobKind(kind).queue](hostId);
    const worker = new Worker(name, null, { connection, prefix, autorun: false });
    kept.defer(() => worker.close());
    return worker;
  };
  return {
    hub,
    dispatch,
    hostId,
    redis,
    workerOf,
    call: <K extends JobKind>(job: Work<K> & { readonly deadlineAt: number }) =>
      dispatch.call({ ...job, hostId, requestId: 'req-test' }),
    /** Takes the job of that kind that waits, as a host does. */
    take: (kind: JobKind) => {
      const worker = workerOf(kind);
      return waitFor('the job', async () => (await worker.getNextJob(randomUUID()))?.id);
    },
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  };
}

const exec: Work<'exec.run'> = {
  kind: 'exec.run',
  payload: { accountId, mounts: [], command: 'true' },
};
const deletion: Work<'sandbox.delete'> = {
  kind: 'sandbox.delete',
  payload: { accountId, sandboxId: newSandboxId() },
};
const disk: Work<'disk.release'> = {
  kind: 'disk.release',
  payload: { accountId, diskId: newDiskId() },
};
const search: Work<'grep.run'> = {
  kind: 'grep.run',
  payload: {
    ...{ accountId, diskId: newDiskId(), directory: '', pattern: 'x', recursive: true },
    ...{ concurrency: 1, maxResults: 1 },
  },
};

const inAWhile = (): number => Date.now() + 60_000;
/** A deadline whose answer is overdue in a moment. */
const justOver = (kind: JobKind): number => Date.now() + 2_000 - jobKind(kind).graceMs;

for (const job of [exec, deletion, disk]) {
  test(`${job.kind}: what a host dropped at its deadline was not begun`, async (t) => {
    await using node = await openDispatch();
    const told = node.call({ ...job, deadlineAt: inAWhile() });
    const jobId = await node.take(job.kind);
    const late = { type: 'error', jobId, code: 'timeout', message: 'too late' } as const;
    node.hub.waiters.receive(node.hostId, late, []);
    await t.throwsAsync(told, { instanceOf: NotTaken, code: 'unavailable' });
  });
}

test('a command that was begun and ended at its deadline has timed out', async (t) => {
  await using node = await openDispatch();
  const told = node.call({ ...exec, deadlineAt: inAWhile() });
  const jobId = await node.take(exec.kind);
  const late = { type: 'error', jobId, code: 'timeout', message: 'was ended' } as const;
  node.hub.waiters.receive(node.hostId, { type: 'accepted', jobId }, []);
  node.hub.waiters.receive(node.hostId, late, []);
  await t.throwsAsync(told, { code: 'timeout', message: 'was ended' });
});

test('a search that was not begun by its deadline has timed out', async (t) => {
  await using node = await openDispatch();
  const dropped = node.call({ ...search, deadlineAt: inAWhile() });
  const jobId = await node.take(search.kind);
  const late = { type: 'error', jobId, code: 'timeout', message: 'too late' } as const;
  node.hub.waiters.receive(node.hostId, late, []);
  await t.throwsAsync(dropped, { code: 'timeout' });
  const untaken = node.call({ ...search, deadlineAt: justOver(search.kind) });
  await t.throwsAsync(untaken, { code: 'timeout' });
});

test('a command without an answer may have begun, once a host has taken it', async (t) => {
  await using node = await openDispatch();
  const told = node.call({ ...exec, deadlineAt: justOver(exec.kind) });
  await node.take(exec.kind);
  await t.throwsAsync(told, { code: 'outcome_unknown' });
});

for (const job of [exec, deletion, disk]) {
  test(`${job.kind}: what nobody took by its deadline leaves the queue and is not begun`, async (t) => {
    await using node = await openDispatch();
    const told = node.call({ ...job, deadlineAt: justOver(job.kind) });
    await t.throwsAsync(told, { instanceOf: NotTaken, code: 'unavailable' });
    t.is(await node.redis.llen(node.workerOf(job.kind).toKey('wait')), 0);
  });
}

test('work on a disk that was begun can be asked for again when its host is lost', async (t) => {
  await using node = await openDispatch();
  const told = node.call({ ...disk, deadlineAt: inAWhile() });
  const jobId = await node.take(disk.kind);
  node.hub.waiters.receive(node.hostId, { type: 'accepted', jobId }, []);
  node.hub.waiters.lose(node.hostId);
  const error = await t.throwsAsync(told, { code: 'unavailable' });
  t.false(error instanceof NotTaken, 'another host does not begin it meanwhile');
});

test('work that may be repeated has timed out when its host does not answer', async (t) => {
  await using node = await openDispatch();
  const told = node.call({ ...deletion, deadlineAt: justOver(deletion.kind) });
  await node.take(deletion.kind);
  await t.throwsAsync(told, { code: 'timeout' });
});

const fork: Work<'sandbox.fork'> = {
  kind: 'sandbox.fork',
  payload: {
    ...{ accountId, sandboxId: newSandboxId(), childId: newSandboxId() },
    ...{ name: 'copy', waitMs: 0 },
  },
};
const fromSnapshot: Work<'sandbox.fromSnapshot'> = {
  kind: 'sandbox.fromSnapshot',
  payload: {
    ...{ accountId, sandboxId: newSandboxId(), snapshotId: newSandboxId() },
    ...{ name: 'copy', waitMs: 0 },
  },
};
const snapshot: Work<'snapshot.create'> = {
  kind: 'snapshot.create',
  payload: {
    ...{ accountId, sandboxId: newSandboxId(), snapshotId: newSandboxId() },
    ...{ name: 'kept', waitMs: 0 },
  },
};

for (const [job, code] of [
  [fork, 'timeout'],
  [fromSnapshot, 'timeout'],
  [snapshot, 'unavailable'],
] as const) {
  test(`${job.kind}: what a host has not made in time is given up with ${code}`, async (t) => {
    await using node = await openDispatch();
    let discards = 0;
    const { hostId, dispatch: jobs } = node;
    const call = { ...job, hostId, requestId: 'req-test', deadlineAt: justOver(job.kind) };
    const told = beginOnHost({ jobs }, call, {
      resultOf: () => 'made',
      find: async () => undefined,
      discard: async () => void (discards += 1),
    });
    await node.take(job.kind);
    await t.throwsAsync(told, { code, message: /nothing was created/u });
    t.is(discards, 1);
  });

  test(`${job.kind}: a call whose host was lost at work may be repeated`, async (t) => {
    await using node = await openDispatch();
    const { hostId, dispatch: jobs } = node;
    const call = { ...job, hostId, requestId: 'req-test', deadlineAt: inAWhile() };
    const told = beginOnHost({ jobs }, call, {
      resultOf: () => 'made',
      find: async () => undefined,
      discard: async () => undefined,
    });
    const jobId = await node.take(job.kind);
    node.hub.waiters.receive(hostId, { type: 'accepted', jobId }, []);
    node.hub.waiters.lose(hostId);
    await t.throwsAsync(told, { code: 'unavailable', message: /nothing was created/u });
  });
}
