import test from 'ava';
import { openRedis } from '../../../shared/directory/open-redis.ts';
import { AppError } from '../../../shared/errors.ts';
import { Daemon } from '../../helpers/daemon.ts';
import { freePorts } from '../../helpers/ports.ts';
import { RedisGroup } from '../../helpers/redis-sentinel.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { waitFor } from '../../helpers/wait.ts';

const REGION = 'local-test';
const CALLERS = 50;

const open = (group: RedisGroup, replicas = 2) =>
  openRedis({ redis: group.target, confirmingReplicas: replicas, region: REGION }, () => undefined);

const codeOf = (error: unknown): string => (error instanceof AppError ? error.code : String(error));

test('what was written is at the replicas once it is confirmed, many writes at a time', async (t) => {
  await using group = await RedisGroup.start();
  const { redis, confirmation, close } = await open(group);
  try {
    const replicas = group.replicas(await group.primary());
    await Promise.all(
      Array.from({ length: CALLERS }, async (_, i) => {
        await confirmation.confirmed(() => redis.set(`key-${i}`, 'written'));
        for (const replica of replicas) {
          t.is(await group.ask(replica, (server) => server.get(`key-${i}`)), 'written');
        }
      }),
    );
    const waits = /cmdstat_wait:calls=(\d+)/u.exec(await redis.info('commandstats'))?.[1];
    t.true(Number(waits) < CALLERS, 'callers share a WAIT');
  } finally {
    close();
  }
});

test('what no replica confirms in time is told apart, and the next writes are confirmed', async (t) => {
  await using group = await RedisGroup.start();
  const { redis, confirmation, close } = await open(group, 1);
  const replicas = group.replicas(await group.primary());
  try {
    for (const { daemon } of replicas) process.kill(daemon.pid, 'SIGSTOP');
    const write = () => redis.set('key', 'written');
    t.is(codeOf(await t.throwsAsync(confirmation.confirmed(write))), 'outcome_unknown');
    for (const { daemon } of replicas) process.kill(daemon.pid, 'SIGCONT');
    await t.notThrowsAsync(confirmation.confirmed(write));
  } finally {
    close();
  }
});

test('a failover between a write and its confirmation is noticed', async (t) => {
  await using group = await RedisGroup.start();
  const { redis, confirmation, close } = await open(group, 1);
  try {
    const outlived = confirmation.confirmed(async () => {
      await redis.set('key', 'written');
      const former = await group.primary();
      process.kill(former.daemon.pid, 'SIGKILL');
      await group.successor(former);
      await waitFor('writes to be confirmed by the other replica', () =>
        confirmation
          .confirmed(() => redis.set('other', 'written'))
          .then(
            () => true,
            () => false,
          ),
      );
    });
    t.is(codeOf(await t.throwsAsync(outlived)), 'outcome_unknown');
  } finally {
    close();
  }
});

test('a Redis Cluster is refused', async (t) => {
  await using directory = await temporaryDirectory();
  const [port = 0] = await freePorts(1);
  const { path } = directory;
  const options = ['--bind', '127.0.0.1', '--port', String(port), '--dir', path, '--save', ''];
  const command = ['redis-server', ...options, '--cluster-enabled', 'yes', '--cluster-port', '0'];
  const daemon = new Daemon('redis', command, {}, `${path}/redis.log`);
  daemon.start();
  try {
    const redis = { url: `redis://127.0.0.1:${port}` };
    const refusal = await waitFor('an answer', () =>
      openRedis({ redis, confirmingReplicas: 0, region: REGION }, () => undefined).then(
        ({ close }) => {
          close();
          return 'opened';
        },
        ({ message }: Error) => !message.includes('cannot be reached') && message,
      ),
    );
    t.regex(refusal, /Redis Cluster/u);
  } finally {
    await daemon.stop('SIGKILL');
  }
});
