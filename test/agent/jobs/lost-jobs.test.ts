/* Which jobs are reported as lost, of those that a real queue lists as active. */
import { randomUUID } from 'node:crypto';
import test from 'ava';
import { Queue, Worker } from 'bullmq';
import type { Redis } from 'ioredis';
import { pino } from 'pino';
import { LostJobs } from '../../../agent/jobs/lost-jobs.ts';
import { queueConnection } from '../../../shared/directory/redis.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';

/** A key in the slot of the queue. */
const ASIDE = '{bull}:aside';

/** A queue whose jobs the test takes itself, by id. */
async function openQueue(): Promise<
  AsyncDisposable & {
    readonly redis: Redis;
    readonly worker: Worker;
    readonly take: () => Promise<string>;
  }
> {
  await using opened = new AsyncDisposableStack();
  const { redis } = opened.use(await startRedis());
  const url = `redis://127.0.0.1:${redis.options.port}`;
  const prefix = '{bull}';
  const options = { prefix, connection: queueConnection({ url }, { blocking: true, prefix }) };
  const queue = new Queue('jobs', options);
  opened.defer(() => queue.close());
  const worker = new Worker('jobs', null, { ...options, autorun: false });
  opened.defer(() => worker.close());
  const take = async (): Promise<string> => {
    await queue.add('job', {});
    const job = await worker.getNextJob(randomUUID());
    return job?.id ?? '';
  };
  const kept = opened.move();
  return { redis, worker, take, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}

test('a job that nobody has is lost; one at work is not, nor one that is done here', async (t) => {
  await using queue = await openQueue();
  const reported: (string | undefined)[] = [];
  const report = ({ id }: { id?: string | undefined }): unknown => reported.push(id);
  const jobs = new LostJobs(queue.worker, report, pino({ level: 'silent' }));
  try {
    const [atWork, done] = [await queue.take(), await queue.take()];
    for (const id of [atWork, done]) t.true(jobs.begin(id));
    jobs.end(done); // Redis has not heard of it, and still counts it as at work.
    const lost = await queue.take();
    t.is(new Set([atWork, done, lost, '']).size, 4);
    // The lost job came last, so the others were looked at at least as often.
    await waitFor('the lost one', async () => reported.includes(lost));
    t.deepEqual(reported, [lost]);
    t.false(jobs.begin(lost), 'its caller was told that it never begins');
  } finally {
    jobs.close();
  }
});

test('a lost job that cannot be read now is reported later, and keeps no other from it', async (t) => {
  await using queue = await openQueue();
  const { redis, worker } = queue;
  const reported: (string | undefined)[] = [];
  const report = ({ id }: { id?: string | undefined }): unknown => reported.push(id);
  const jobs = new LostJobs(worker, report, pino({ level: 'silent' }));
  try {
    const [unread, read] = [await queue.take(), await queue.take()];
    const key = worker.toKey(unread);
    await redis.rename(key, ASIDE);
    await redis.set(key, 'no job');
    await waitFor('the other one', async () => reported.includes(read));
    t.deepEqual(reported, [read]);
    await redis.rename(ASIDE, key);
    await waitFor('the first one', async () => reported.includes(unread));
    t.deepEqual(reported, [read, unread]);
    t.false(jobs.begin(unread));
  } finally {
    jobs.close();
  }
});

test('a job that arrives before it is reported as lost may begin', async (t) => {
  await using queue = await openQueue();
  const { redis, worker } = queue;
  const reported: (string | undefined)[] = [];
  const report = ({ id }: { id?: string | undefined }): unknown => reported.push(id);
  const jobs = new LostJobs(worker, report, pino({ level: 'silent' }));
  try {
    const [late, lost] = [await queue.take(), await queue.take()];
    const key = worker.toKey(late);
    await redis.rename(key, ASIDE);
    await redis.set(key, 'no job');
    await waitFor('the other one', async () => reported.includes(lost));
    t.true(jobs.begin(late));
    await redis.rename(ASIDE, key);
    const next = await queue.take();
    await waitFor('another one', async () => reported.includes(next));
    t.deepEqual(reported, [lost, next]);
  } finally {
    jobs.close();
  }
});
