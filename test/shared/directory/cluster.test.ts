import { writeFile } from 'node:fs/promises';
import anyTest, { type TestFn } from 'ava';
import { Queue } from 'bullmq';
import { Redis } from 'ioredis';
import { noteWrites } from '../../../shared/directory/cluster-client.ts';
import { openDirectory } from '../../../shared/directory/directory.ts';
import { openRedis } from '../../../shared/directory/open-redis.ts';
import { primaryOf } from '../../../shared/directory/primary-of.ts';
import { QueuedJobs } from '../../../shared/directory/queued-jobs.ts';
import { connectQueues, queueConnection } from '../../../shared/directory/redis.ts';
import { AppError } from '../../../shared/errors.ts';
import { TestAuthority } from '../../helpers/certificates.ts';
import { RedisCluster } from '../../helpers/redis-cluster.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { waitFor } from '../../helpers/wait.ts';

const test = anyTest.serial as TestFn<{ cluster: RedisCluster }>;

const REGION = 'local-test';
const CALLERS = 60;

const ignore = (): void => undefined;
const open = (cluster: RedisCluster) =>
  openRedis({ redis: cluster.target, confirmingReplicas: 1, region: REGION }, ignore);

test.before(async (t) => {
  t.context.cluster = await RedisCluster.start();
});
test.after.always((t) => t.context.cluster[Symbol.asyncDispose]());

/** How work ended: `done`, the code of an error of ours, or what Redis said. */
const outcome = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'done',
    (error: unknown) => (error instanceof AppError ? error.code : String(error)),
  );

const isDone = async (work: Promise<unknown>): Promise<boolean> => (await outcome(work)) === 'done';

/** A key of each primary, by its port. */
async function keyOfEach(cluster: RedisCluster): Promise<Map<number, string>> {
  const found = new Map<number, string>();
  for (let i = 0; found.size < 3; i += 1) {
    const { port } = await cluster.primary(`{${i}}`);
    if (!found.has(port)) found.set(port, `{${i}}`);
  }
  return found;
}

test('what was written to several primaries is at their replicas once it is confirmed', async (t) => {
  const { cluster } = t.context;
  const { redis, confirmation, close } = await open(cluster);
  try {
    await Promise.all(
      Array.from({ length: CALLERS }, async (_, i) => {
        const names = [`{${i}}:a`, `{${i}}:b`, `{${i + CALLERS}}:c`];
        await confirmation.confirmed(async () => {
          for (const name of names) await redis.set(name, 'written');
        });
        for (const name of names) {
          const [replica] = await cluster.replicas(await cluster.primary(name));
          if (replica === undefined) throw new Error('the primary has no replica');
          const found = await cluster.ask(replica, async (server) => {
            await server.readonly();
            return server.get(name);
          });
          t.is(found, 'written');
        }
      }),
    );
    for (const node of new Set((await keyOfEach(cluster)).keys())) {
      const server = cluster.nodes.find(({ port }) => port === node);
      if (server === undefined) continue;
      const stats = await cluster.ask(server, (each) => each.info('commandstats'));
      const waits = /cmdstat_wait:calls=(\d+)/u.exec(stats)?.[1];
      t.true(Number(waits) < CALLERS, 'callers share a WAIT');
    }
  } finally {
    close();
  }
});

/** The ports of the primaries that work wrote to. */
async function portsWritten(work: () => Promise<unknown>): Promise<(number | undefined)[]> {
  const { written } = await noteWrites(work);
  return [...written].map(({ options }) => options.port);
}

test('each write of the directory is noted, also in transactions; reads are not', async (t) => {
  const { cluster } = t.context;
  const { redis, close } = await open(cluster);
  try {
    const { accounts, accountLimits, activity, images, usage, webhooks } = openDirectory(
      redis,
      REGION,
    );
    const { id } = await accounts.create('account');
    const { port } = await cluster.primary(`{${id}}`);
    t.deepEqual(await portsWritten(() => accountLimits.change(id, { disks: 7 })), [port]);
    const delivery = { eventId: 'e', isDelivered: true } as Parameters<
      typeof webhooks.noteDelivery
    >[2];
    t.deepEqual(await portsWritten(() => webhooks.noteDelivery(id, 'w', delivery)), [port]);
    t.deepEqual(await portsWritten(() => usage.addCounts(id, { requests: 1, execs: 1 })), [port]);
    const reads = async () => {
      t.like(await accountLimits.get(id), { disks: 7 });
      t.is(await images.find(id, 'none'), undefined);
      t.is((await accounts.get(id))?.name, 'account');
      t.deepEqual((await activity.list(id, {})).items, []);
    };
    t.deepEqual(await portsWritten(reads), []);
    await t.throwsAsync(redis.mget('{1}:a', '{2}:b'), { message: /CROSSSLOT|same slot/u });
  } finally {
    close();
  }
});

test('a Redis Cluster with TLS and a password', async (t) => {
  await using directory = await temporaryDirectory();
  const authority = await TestAuthority.create('authority');
  const { cert: certPath, key: keyPath } = await authority.issue(directory.path, 'redis');
  const caPath = `${directory.path}/ca.pem`;
  await writeFile(caPath, authority.certificate);
  await using cluster = await RedisCluster.start({
    password: 'secret',
    tls: { caPath, certPath, keyPath },
  });
  const { redis, confirmation, close } = await open(cluster);
  const prefix = 'berth:{host}:bull';
  const queue = new Redis(queueConnection(cluster.target, { blocking: true, prefix }));
  queue.on('error', ignore);
  try {
    for (const key of (await keyOfEach(cluster)).values()) {
      t.is(await outcome(confirmation.confirmed(() => redis.set(key, 'written'))), 'done');
    }
    await queue.set(`${prefix}:key`, 'written');
    t.is(await redis.get(`${prefix}:key`), 'written');
  } finally {
    queue.disconnect();
    close();
  }
});

test('only changes at a primary that has lost its replica are not promised', async (t) => {
  const { cluster } = t.context;
  const { redis, confirmation, close } = await open(cluster);
  const write = (key: string) => outcome(confirmation.confirmed(() => redis.set(key, 'written')));
  try {
    const [[port, alone] = [0, ''], ...others] = await keyOfEach(cluster);
    t.is(await write(alone), 'done');
    const [replica] = await cluster.replicas(await cluster.primary(alone));
    process.kill(replica?.daemon.pid ?? 0, 'SIGSTOP');
    t.is(await write(alone), 'outcome_unknown', String(port));
    for (const [, key] of others) t.is(await write(key), 'done');
    process.kill(replica?.daemon.pid ?? 0, 'SIGCONT');
    await waitFor('the replica to be back', async () => (await write(alone)) === 'done');
  } finally {
    close();
  }
});

test('a failover between a write and its confirmation is noticed; commands then find the successor', async (t) => {
  const { cluster } = t.context;
  const { redis, confirmation, close } = await open(cluster);
  try {
    const former = await cluster.primary('key');
    const outlived = confirmation.confirmed(async () => {
      await redis.set('key', 'written');
      process.kill(former.daemon.pid, 'SIGKILL');
      await cluster.successor(former, 'key');
      await waitFor('writes to be taken again', () => isDone(redis.set('key', 'next')));
    });
    t.is(await outcome(outlived), 'outcome_unknown');
    await cluster.restart(former);
    t.is(await outcome(confirmation.confirmed(() => redis.set('key', 'confirmed'))), 'done');
  } finally {
    close();
  }
});

test('a slot moves without a command failing, and what is confirmed is there', async (t) => {
  const { cluster } = t.context;
  const { redis, confirmation, close } = await open(cluster);
  try {
    const ended: string[] = [];
    const isOver = new AbortController();
    const writing = (async () => {
      while (!isOver.signal.aborted) {
        const name = `{key}:${ended.length}`;
        ended.push(await outcome(confirmation.confirmed(() => redis.set(name, 'written'))));
      }
    })();
    const from = await cluster.primary('{key}');
    const to = await cluster.anotherPrimary(from);
    await waitFor('some writes', () => Promise.resolve(ended.length > 50));
    await cluster.moveSlot('{key}', from, to);
    const before = ended.length;
    await waitFor('some more', () => Promise.resolve(ended.length > before + 50));
    isOver.abort();
    await writing;
    t.deepEqual(new Set(ended), new Set(['done']));
    t.is(await cluster.primary('{key}'), to);
    for (const i of ended.keys()) t.is(await redis.get(`{key}:${i}`), 'written');
  } finally {
    close();
  }
});

test('a connection for one queue follows its slot to another primary, and knows that it is one', async (t) => {
  const { cluster } = t.context;
  const prefix = 'berth:{host}:bull';
  const redis = new Redis(queueConnection(cluster.target, { blocking: true, prefix }));
  redis.on('error', ignore);
  try {
    const from = await cluster.primary(prefix);
    const next = await cluster.anotherPrimary(from);
    await redis.set(`${prefix}:key`, 'first');
    t.is(redis.stream.remotePort, from.port);
    const former = primaryOf(redis);
    t.is(await cluster.ask(from, (node) => node.info('server')).then(runId), former);
    await cluster.moveSlot(prefix, from, next);
    await redis.set(`${prefix}:key`, 'second');
    t.is(redis.stream.remotePort, next.port);
    t.not(primaryOf(redis), former);
    process.kill(next.daemon.pid, 'SIGKILL');
    await redis.set(`${prefix}:key`, 'third');
    t.is(redis.stream.remotePort, (await cluster.successor(next, prefix)).port);
    await cluster.restart(next);
  } finally {
    redis.disconnect();
  }
});

const runId = (info: string): string | undefined => /run_id:(\w+)/u.exec(info)?.[1];

test('a job is taken back for certain only from the primary that it was queued at', async (t) => {
  const { cluster } = t.context;
  const { redis, close } = await open(cluster);
  const connection = connectQueues(cluster.target, ignore);
  const prefix = 'berth:{host}:bull';
  const queue = new Queue('exec-host', { connection, prefix });
  queue.on('error', ignore);
  const jobs = new QueuedJobs(redis);
  const add = async (id: string) => {
    const primary = await jobs.primary(queue);
    await queue.add('exec.run', {}, { jobId: id, removeOnComplete: true });
    return { queue, id, primary };
  };
  try {
    const from = await cluster.primary(prefix);
    const first = await add('first');
    t.is(first.primary, await cluster.ask(from, (node) => node.info('server')).then(runId));
    t.true(await jobs.takeBack(first));
    t.true(await jobs.takeBack(first), 'as the call before told');
    const moved = await add('moved');
    await cluster.moveSlot(prefix, from, await cluster.anotherPrimary(from));
    t.false(await jobs.takeBack(moved), 'it may have been begun at the former primary');
    t.false(await jobs.takeBack(moved), 'no more so because it was taken back here');
    t.true(await jobs.takeBack(await add('second')));
    t.is((await jobs.waiting(queue)).count, 0);
  } finally {
    await queue.close();
    connection.disconnect();
    close();
  }
});
