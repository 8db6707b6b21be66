import anyTest, { type TestFn } from 'ava';
import { Queue, Worker } from 'bullmq';
import { QueuedJobs } from '../../../shared/directory/queued-jobs.ts';
import { queueConnection } from '../../../shared/directory/redis.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';

type Server = Awaited<ReturnType<typeof startRedis>>;
const test = anyTest.serial as TestFn<{ server: Server; queue: Queue; jobs: QueuedJobs }>;

const PREFIX = 'berth:{host}:bull';

const connectionTo = ({ redis }: Server, blocking: boolean) =>
  queueConnection({ url: `redis://127.0.0.1:${redis.options.port}` }, { blocking, prefix: PREFIX });

test.before(async (t) => {
  const server = await startRedis();
  const connection = connectionTo(server, true);
  t.context.server = server;
  t.context.queue = new Queue('exec-host', { connection, prefix: PREFIX });
  t.context.jobs = new QueuedJobs(server.redis);
});

test.after.always(async (t) => {
  await t.context.queue.close();
  await t.context.server[Symbol.asyncDispose]();
});

const add = ({ queue }: { queue: Queue }, id: string) =>
  queue.add('exec.run', {}, { jobId: id, removeOnComplete: true, removeOnFail: true });

/** A worker on the queue with the options that hosts use. */
function startWorker(server: Server, run: (id: string) => Promise<void>): AsyncDisposable {
  const worker = new Worker('exec-host', ({ id = '' }) => run(id), {
    connection: connectionTo(server, true),
    prefix: PREFIX,
    removeOnComplete: { count: 0 },
  });
  worker.on('error', () => undefined);
  return { [Symbol.asyncDispose]: () => worker.close(true) };
}

test('a waiting job that was taken back no host ever gets, and another call tells the same', async (t) => {
  const { server, queue, jobs } = t.context;
  await add(t.context, 'taken-back');
  await add(t.context, 'stays');
  t.true(await jobs.takeBack({ queue, id: 'taken-back', primary: undefined }));
  // The first answer may have been lost with its connection.
  t.true(await jobs.takeBack({ queue, id: 'taken-back', primary: undefined }));
  t.true((await server.redis.pttl(queue.toKey('taken-back:takenBack'))) > 0);
  const ran: string[] = [];
  await using _worker = startWorker(server, async (id) => {
    ran.push(id);
  });
  await waitFor('the other job to run', async () => ran.length > 0);
  t.deepEqual(ran, ['stays']);
  await waitFor(
    'the queue to be empty',
    async () => (await server.redis.exists(queue.toKey('stays'))) === 0,
  );
  t.is(await server.redis.exists(queue.toKey('taken-back')), 0);
});

test('a job that ran and was removed is not taken back', async (t) => {
  const { server, queue, jobs } = t.context;
  const ran: string[] = [];
  await using _worker = startWorker(server, async (id) => {
    ran.push(id);
  });
  await add(t.context, 'ended');
  await waitFor('the job to leave the queue', async () => {
    return ran.length > 0 && (await server.redis.exists(queue.toKey('ended'))) === 0;
  });
  t.false(await jobs.takeBack({ queue, id: 'ended', primary: undefined }));
});

test('a job under way is not taken back, even after its lock expired', async (t) => {
  const { server, queue, jobs } = t.context;
  const release = Promise.withResolvers<void>();
  const begun = Promise.withResolvers<void>();
  await using _worker = startWorker(server, () => {
    begun.resolve();
    return release.promise;
  });
  await add(t.context, 'at-work');
  await begun.promise;
  await server.redis.del(`${queue.toKey('at-work')}:lock`);
  t.false(await jobs.takeBack({ queue, id: 'at-work', primary: undefined }));
  release.resolve();
});
