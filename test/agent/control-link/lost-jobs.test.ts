/* Which jobs are reported as lost, of those that a real queue lists as active. */
import { randomUUID } from 'node:crypto';
import test from 'ava';
import { Queue, Worker } from 'bullmq';
import { pino } from 'pino';
import { LostJobs } from '../../../agent/control-link/lost-jobs.ts';
import { queueConnection } from '../../../shared/directory/redis.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';

/** A key in the slot of the queue. */
const ASIDE = '{bull}:aside';

const HOUR_MS = 3_600_000;

/** A queue whose jobs the test takes itself, by id, and what is told of those that are lost. */
async function openQueue(): Promise<
  AsyncDisposable & {
    /** A job that a former agent took, by a clock that was set back since. */
    readonly former: string;
    readonly take: () => Promise<string>;
    readonly jobs: LostJobs;
    /** Ids, in the order of the reports. */
    readonly reported: readonly string[];
    /** Keeps a job from being read until the result is called. */
    readonly hide: (id: string) => Promise<() => Promise<unknown>>;
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
  const former = await take();
  await redis.hset(worker.toKey(former), 'processedOn', Date.now() + HOUR_MS);
  const reported: string[] = [];
  const report = ({ id = '' }: { id?: string | undefined }): unknown => reported.push(id);
  const jobs = new LostJobs(worker, report, pino({ level: 'silent' }));
  opened.defer(() => jobs.close());
  await jobs.known;
  const hide = async (id: string): Promise<() => Promise<unknown>> => {
    const key = worker.toKey(id);
    await redis.rename(key, ASIDE);
    await redis.set(key, 'no job');
    return () => redis.rename(ASIDE, key);
  };
  const kept = opened.move();
  return { former, take, jobs, reported, hide, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}

test('a job that nobody has is lost; one at work is not, nor one that is done here', async (t) => {
  await using queue = await openQueue();
  const { jobs, reported } = queue;
  const [atWork, done] = [await queue.take(), await queue.take()];
  for (const id of [atWork, done]) t.true(jobs.begin(id));
  jobs.end(done); // Redis has not heard of it, and still counts it as at work.
  const lost = await queue.take();
  t.is(new Set([atWork, done, lost, '']).size, 4);
  // The lost job came last, so the others were looked at at least as often.
  await waitFor('the lost one', async () => reported.includes(lost));
  t.deepEqual(reported, [lost]);
  t.false(jobs.begin(lost), 'its caller was told that it never begins');
});

test('a job that a former agent took is not reported as lost, by whatever clock', async (t) => {
  await using queue = await openQueue();
  const { former, jobs, reported } = queue;
  const lost = await queue.take();
  // The lost job came last, so the former agent's was looked at at least as often.
  await waitFor('the lost one', async () => reported.includes(lost));
  t.deepEqual(reported, [lost]);
  t.false(jobs.begin(former), 'nobody begins it again');
});

test('a lost job that cannot be read now is reported later, and keeps no other from it', async (t) => {
  await using queue = await openQueue();
  const { jobs, reported } = queue;
  const [unread, read] = [await queue.take(), await queue.take()];
  const show = await queue.hide(unread);
  await waitFor('the other one', async () => reported.includes(read));
  t.deepEqual(reported, [read]);
  await show();
  await waitFor('the first one', async () => reported.includes(unread));
  t.deepEqual(reported, [read, unread]);
  t.false(jobs.begin(unread));
});

test('a job that arrives before it is reported as lost may begin', async (t) => {
  await using queue = await openQueue();
  const { jobs, reported } = queue;
  const [late, lost] = [await queue.take(), await queue.take()];
  const show = await queue.hide(late);
  await waitFor('the other one', async () => reported.includes(lost));
  t.true(jobs.begin(late));
  await show();
  const next = await queue.take();
  await waitFor('another one', async () => reported.includes(next));
  t.deepEqual(reported, [lost, next]);
});
