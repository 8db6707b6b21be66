/* An agent keeps working whatever its queues hold, and runs only jobs that control made. */
import { randomUUID } from 'node:crypto';
import { readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Queue } from 'bullmq';
import * as fc from '../helpers/fast-check.ts';
import anyTest, { type TestFn } from 'ava';
import { queues } from '../../shared/directory/keys.ts';
import { JobSeal } from '../../shared/jobs/job-seal.ts';
import type { JobEnvelope } from '../../shared/jobs/jobs.ts';
import { queueConnection } from '../../shared/directory/redis.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { diskContents } from '../helpers/host.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  diskId: string;
  accountId: string;
  agentPid: number;
  exec: Queue;
  host: Queue;
  seal: JobSeal;
}

const test = anyTest as TestFn<Context>;

const EXEC_SLOTS = 2;

test.before(async (t) => {
  const stack = await Stack.start({
    EXEC_SLOTS: String(EXEC_SLOTS),
    EXEC_SLOTS_PER_ACCOUNT: String(EXEC_SLOTS),
  });
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  await exec(api, id, 'echo kept > file');
  const redis = await stack.redisClient();
  const [lease = ''] = await redis.keys(`*:disk:${id}:lease`);
  const hostId = (await redis.get(lease))?.split(' ')[0] ?? '';
  const options = {
    connection: queueConnection(
      { url: stack.environment['REDIS_URL'] ?? '' },
      { blocking: false, prefix: '' },
    ),
    prefix: queues.prefix(hostId),
  };
  Object.assign(t.context, {
    stack,
    api,
    diskId: id,
    accountId: /\{(.*?)\}/u.exec(lease)?.[1] ?? '',
    agentPid: stack.agent.pid,
    exec: new Queue(queues.exec(hostId), options),
    host: new Queue(queues.host(hostId), options),
    seal: new JobSeal([stack.environment['CLUSTER_SECRET'] ?? '']),
  });
  await Promise.all([t.context.exec.waitUntilReady(), t.context.host.waitUntilReady()]);
});

test.afterEach(async (t) => {
  const { api, diskId, stack, agentPid } = t.context;
  t.is((await exec(api, diskId, 'ls; cat file')).stdout, 'file\nkept\n');
  t.is(stack.agent.pid, agentPid);
});

test.after.always(async (t) => {
  await t.context.exec.close();
  await t.context.host.close();
  await t.context.stack.stop();
});

async function untilEmpty(...all: Queue[]): Promise<void> {
  for (const queue of all) {
    await waitFor('the queue to be worked off', async () => {
      const counts = await queue.getJobCounts('wait', 'active', 'delayed', 'prioritized');
      return Object.values(counts).every((count) => count === 0);
    });
  }
}

const execJob = (accountId: string, diskId: string, command: string): JobEnvelope<'exec.run'> => ({
  id: randomUUID(),
  kind: 'exec.run',
  payload: {
    accountId,
    mounts: [
      { diskId, path: '', subdirectory: '', readOnly: false, checkouts: [], checkoutWaitMs: 0 },
    ],
    command,
  },
  replyTo: 'node-000000000000', // Nobody waits for an answer.
  requestId: 'req-test',
  deadlineAt: Date.now() + 60_000,
});

const options = { attempts: 1, removeOnComplete: true, removeOnFail: true };

/** Queues jobs as control does: sealed, each under its id. */
async function addSealed(seal: JobSeal, queue: Queue, jobs: readonly object[]): Promise<void> {
  for (const data of jobs) {
    const job = data as JobEnvelope;
    const sealed = seal.seal(queue.name, job);
    await queue.add('job', sealed, { ...options, jobId: job.id });
  }
}

test.serial('queue entries that control did not make are dropped', async (t) => {
  const { exec: execQueue, host } = t.context;
  const garbage = fc.sample(fc.oneof(fc.jsonValue(), fc.object()), { numRuns: 150, seed: 7 });
  for (const queue of [execQueue, host]) {
    await queue.addBulk(
      garbage.map((data, index) => ({ name: `junk-${index}`, data, opts: options })),
    );
  }
  await untilEmpty(execQueue, host);
  t.is(garbage.length, 150);
});

test.serial('jobs that control did not seal for this queue and id are dropped', async (t) => {
  const { exec: execQueue, host, seal, accountId, diskId } = t.context;
  const job = execJob(accountId, diskId, 'touch junk');
  const others = new JobSeal(['another secret of thirty-two letters']);
  const entries: [data: object, jobId: string][] = [
    [job, job.id],
    [{ sealed: JSON.stringify(job) }, job.id],
    [{ sealed: '' }, job.id],
    [seal.seal(host.name, job), job.id], // A job moved from another queue.
    [seal.seal(execQueue.name, job), randomUUID()], // A job repeated under another id.
    [others.seal(execQueue.name, job), job.id],
  ];
  for (const [data, jobId] of entries) {
    await execQueue.add('exec.run', data, { ...options, jobId });
    await untilEmpty(execQueue);
  }
  t.pass(); // afterEach checks that the disk is unchanged.
});

test.serial('jobs with one thing wrong are dropped', async (t) => {
  const { exec: execQueue, host, seal, accountId, diskId } = t.context;
  const job = (): JobEnvelope<'exec.run'> => execJob(accountId, diskId, 'touch junk');
  const { payload } = job();
  const { mounts } = payload;
  const wrong: object[] = [
    { ...job(), id: '../../etc' },
    { ...job(), kind: 'exec.walk' },
    { ...job(), kind: 'constructor' },
    { ...job(), kind: '__proto__' },
    { ...job(), replyTo: 'node-x' },
    { ...job(), deadlineAt: Date.now() - 1 },
    { ...job(), deadlineAt: 'soon' },
    { ...job(), payload: { ...payload, command: '' } },
    { ...job(), payload: { ...payload, command: ['x'] } },
    { ...job(), payload: { ...payload, accountId: 'acct-0000000000000000/../x' } },
    { ...job(), payload: { ...payload, mounts: [] } },
    { ...job(), payload: { ...payload, mounts: [{ ...mounts[0], diskId: '../../x' }] } },
    {
      ...job(),
      payload: { ...payload, mounts: [{ ...mounts[0], diskId: 'dsk-0123456789abcdef' }] },
    },
    { ...job(), payload: { ...payload, mounts: [{ ...mounts[0], subdirectory: '../..' }] } },
    { ...job(), payload: { ...payload, mounts: [{ ...mounts[0], subdirectory: '/etc' }] } },
    { ...job(), payload: null },
  ];
  await addSealed(seal, execQueue, wrong);
  await addSealed(seal, host, wrong);
  await untilEmpty(execQueue, host);
  t.pass();
});

test.serial('a job that was begun before is not run again', async (t) => {
  const { exec: execQueue, seal, api, accountId, stack } = t.context;
  const { id: diskId } = await createDisk(api);
  const job = execJob(accountId, diskId, 'echo ran >> ran; until [ -e go ]; do sleep 0.05; done');
  await addSealed(seal, execQueue, [job]);
  const mount = diskContents(stack, diskId);
  await waitFor('the command', async () =>
    (await readdir(mount).catch((): string[] => [])).includes('ran'),
  );
  const redis = await stack.redisClient();
  for (const _ of [1, 2]) {
    // An attacker who can write to Redis queues it again.
    await redis.del(execQueue.toKey(job.id));
    await addSealed(seal, execQueue, [job]);
    // Taken and dropped. Otherwise the removal could hit the entry that is queued next.
    const key = execQueue.toKey(job.id);
    await waitFor('the entry to be gone', async () => (await redis.exists(key)) === 0);
  }
  await writeFile(join(mount, 'go'), '');
  await waitFor('the end', async () => {
    const log = await stack.agent.readLog();
    return log.split('\n').some((line) => line.includes(job.id) && line.includes('"outcome":"ok"'));
  });
  await redis.lrem(execQueue.toKey('active'), 0, job.id); // BullMQ misses what was deleted.
  t.is((await exec(api, diskId, 'cat ran')).stdout, 'ran\n');
});

test.serial('a job that waited past its deadline is not begun', async (t) => {
  const { exec: execQueue, seal, api, accountId, stack } = t.context;
  const { id: diskId } = await createDisk(api);
  const ahead = Array.from({ length: EXEC_SLOTS }, (_, index) =>
    exec(api, diskId, `touch begun-${index}; until [ -e go ]; do sleep 0.05; done`),
  );
  const mount = diskContents(stack, diskId);
  await waitFor('the commands', async () => {
    const names = await readdir(mount).catch(() => []); // Not mounted yet.
    return names.length === EXEC_SLOTS;
  });
  const job = execJob(accountId, diskId, 'touch late');
  await addSealed(seal, execQueue, [{ ...job, deadlineAt: Date.now() + 200 }]);
  await waitFor('the log', async () =>
    (await stack.agent.readLog()).includes(`"jobId":"${job.id}"`),
  );
  await writeFile(join(mount, 'go'), '');
  await Promise.all(ahead);
  await untilEmpty(execQueue);
  t.is((await exec(api, diskId, 'ls')).stdout, 'begun-0\nbegun-1\ngo\n');
});

test.serial('a job for a disk that is not in the directory creates nothing', async (t) => {
  const { host, seal, accountId } = t.context;
  const jobs = ['disk.create', 'disk.delete', 'disk.record', 'disk.create'].map((kind) => ({
    id: randomUUID(),
    kind,
    payload: { accountId, diskId: 'dsk-0123456789abcdef' },
    replyTo: 'node-000000000000',
    requestId: 'req-test',
    deadlineAt: Date.now() + 60_000,
  }));
  await addSealed(seal, host, jobs);
  await untilEmpty(host);
  const disks = await readdir(join(t.context.stack.environment['STORAGE_DIR'] ?? '', 'disks'));
  t.true(
    disks.every((name) => name.startsWith('dsk-') && name !== 'dsk-0123456789abcdef'),
    disks.join(' '),
  );
});
