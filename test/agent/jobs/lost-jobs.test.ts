/* Which jobs are reported as lost, of those that a real queue lists as active. */
import { randomUUID } from 'node:crypto';
import test from 'ava';
import { Queue, Worker } from 'bullmq';
import { pino } from 'pino';
import { LostJobs } from '../../../agent/jobs/lost-jobs.ts';
import { queueConnection } from '../../../shared/directory/redis.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';

/** A queue whose jobs the test takes itself, by id. */
async function openQueue(): Promise<
  AsyncDisposable & { readonly worker: Worker; readonly take: () => Promise<string> }
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
  return { worker, take, [Symbol.asyncDispose]: () => kept.disposeAsync() };
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
