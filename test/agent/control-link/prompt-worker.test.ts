/* How jobs of a real queue are taken. */
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { type Job, Queue } from 'bullmq';
import { PromptWorker } from '../../../agent/control-link/prompt-worker.ts';
import { queueConnection } from '../../../shared/directory/redis.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';

/** A queue, and workers on it with this processor. */
async function openQueue(process: (job: Job, queue: Queue) => Promise<void>) {
  await using opened = new AsyncDisposableStack();
  const { redis } = opened.use(await startRedis());
  const url = `redis://127.0.0.1:${redis.options.port}`;
  const prefix = '{bull}';
  const options = { prefix, connection: queueConnection({ url }, { blocking: true, prefix }) };
  const queue = new Queue('jobs', options);
  opened.defer(() => queue.close());
  const kept = opened.move();
  const work = (concurrency: number): PromptWorker => {
    const worker = new PromptWorker('jobs', (job) => process(job, queue), {
      ...options,
      concurrency,
    });
    kept.defer(() => worker.close());
    return worker;
  };
  const add = (count: number, from = 0) =>
    queue.addBulk(
      Array.from({ length: count }, (_, index) => ({ name: 'job', data: { index: from + index } })),
    );
  return { queue, work, add, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}

test('a job begins while others still wait in the queue', async (t) => {
  const waiting = Promise.withResolvers<number>();
  await using jobs = await openQueue(async (_job, queue) => {
    waiting.resolve(await queue.getWaitingCount());
  });
  await jobs.add(100);
  jobs.work(1000);
  t.true((await waiting.promise) > 0);
});

test('every job is done once, whether it comes in a burst or to an empty queue, and no more at once than may be', async (t) => {
  const done: number[] = [];
  let [atWork, most] = [0, 0];
  await using jobs = await openQueue(async ({ data: { index } }) => {
    atWork += 1;
    most = Math.max(most, atWork);
    await sleep(5);
    atWork -= 1;
    done.push(Number(index));
  });
  jobs.work(4);
  const counts = [50, 1, 1, 7, 1, 40];
  let expected = 0;
  for (const count of counts) {
    await jobs.add(count, expected);
    expected += count;
    await waitFor('all jobs', () => Promise.resolve(done.length >= expected));
  }
  t.deepEqual(
    done.toSorted((a, b) => a - b),
    Array.from({ length: expected }, (_, index) => index),
  );
  t.is(most, 4);
  t.is(await jobs.queue.getWaitingCount(), 0);
});

test('jobs that come while others are at work are begun at once', async (t) => {
  const ended = Promise.withResolvers<void>();
  const begun: number[] = [];
  await using jobs = await openQueue(async ({ data: { index } }) => {
    begun.push(Number(index));
    await ended.promise;
  });
  jobs.work(100);
  for (let index = 0; index < 5; index += 1) {
    await jobs.add(1, index);
    await waitFor('the job', () => Promise.resolve(begun.includes(index)));
  }
  ended.resolve();
  t.deepEqual(begun, [0, 1, 2, 3, 4]);
});
