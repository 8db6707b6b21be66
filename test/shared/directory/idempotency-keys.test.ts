import type { Redis } from 'ioredis';
import { IdempotencyKeys, type KeyedRequest } from '../../../shared/directory/idempotency-keys.ts';
import { keys as redisKeys } from '../../../shared/directory/keys.ts';
import { openRedis } from '../../../shared/directory/open-redis.ts';
import { unconfirmed } from '../../../shared/directory/replica-confirmation.ts';
import { RedisGroup } from '../../helpers/redis-sentinel.ts';
import { redisTest } from '../../helpers/redis-test.ts';
import { waitFor } from '../../helpers/wait.ts';

const TTL_MS = 600_000;
const BOUNDS = { keysPerAccount: 20, keys: 200, bytesPerAccount: 10_000, bytes: 40_000 };
const request: KeyedRequest = {
  owner: 'request',
  nodeId: 'node',
  region: 'local-test',
  fingerprint: 'f',
  runningUntil: 0,
};
const answerOf = (bytes: number): string => 'a'.repeat(bytes);

const { serial: test } = redisTest((redis) => ({
  keys: new IdempotencyKeys(redis, unconfirmed, BOUNDS),
}));

test.beforeEach(async (t) => {
  await t.context.redis.flushdb();
});

/** Claims and finishes keys with answers of the given sizes. @returns which answers are kept */
async function answerAll(
  keys: IdempotencyKeys,
  account: string,
  count: number,
  bytes: number,
  ttlMs = TTL_MS,
): Promise<boolean[]> {
  for (let i = 0; i < count; i += 1) {
    await keys.claim(account, `key-${i}`, request, ttlMs);
    await keys.finish(
      account,
      `key-${i}`,
      { ...request, status: 200, answer: answerOf(bytes) },
      ttlMs,
    );
  }
  const found = await Promise.all(
    Array.from({ length: count }, (_, i) => keys.get(account, `key-${i}`)),
  );
  return found.map((each) => {
    if (each?.status !== 200) throw new Error('a key was forgotten');
    return each.answer !== undefined;
  });
}

const bytesOf = async (redis: Redis): Promise<number> => {
  const names = await redis.keys(redisKeys.idempotencyAnswer('*', '*'));
  const sizes = await Promise.all(names.map((name) => redis.strlen(name)));
  return sizes.reduce((sum, size) => sum + size, 0);
};

test('an account keeps its newest answers within its bytes, and every key', async (t) => {
  const kept = await answerAll(t.context.keys, 'a', 20, 1000);
  t.is(kept.filter(Boolean).length, 10);
  t.true(kept.at(-1));
  t.false(kept[0]);
});

test('one answer larger than all that an account may keep is not kept', async (t) => {
  t.deepEqual(await answerAll(t.context.keys, 'a', 1, 10_001), [false]);
});

test('all accounts together stay within the total, and each can keep some answers', async (t) => {
  const { keys, redis } = t.context;
  for (const account of ['a', 'b', 'c', 'd', 'e', 'f']) {
    const kept = await answerAll(keys, account, 9, 1000);
    t.true(kept.at(-1), account);
  }
  t.true((await bytesOf(redis)) <= BOUNDS.bytes);
  t.true((await keys.get('a', 'key-8'))?.answer !== undefined, 'others evicted its answer');
});

test('keys are limited per account; existing ones stay', async (t) => {
  const { keys } = t.context;
  await answerAll(keys, 'a', 20, 10);
  t.is(await keys.claim('a', 'more', request, TTL_MS), 'full');
  t.like(await keys.claim('a', 'key-0', request, TTL_MS), { status: 200 });
  t.is(await keys.claim('b', 'more', request, TTL_MS), 'claimed');
});

test('a released key is free and no longer counts', async (t) => {
  const { keys } = t.context;
  for (let i = 0; i < 3 * BOUNDS.keysPerAccount; i += 1) {
    t.is(await keys.claim('a', `key-${i}`, request, TTL_MS), 'claimed');
    await keys.release('a', `key-${i}`, 'request');
  }
  t.is(await keys.get('a', 'key-0'), undefined);
});

test('only its owner can finish or release a key', async (t) => {
  const { keys } = t.context;
  await keys.claim('a', 'key', request, TTL_MS);
  await keys.release('a', 'key', 'another');
  await keys.finish('a', 'key', { ...request, owner: 'another', status: 200 }, TTL_MS);
  t.deepEqual(await keys.get('a', 'key'), request);
});

test('work that was done while Redis lost its claim is kept, and counted once', async (t) => {
  const { keys, redis } = t.context;
  await keys.claim('a', 'key', request, TTL_MS);
  await redis.flushdb();
  const done = { ...request, status: 200, answer: 'answer' };
  await keys.finish('a', 'key', done, TTL_MS);
  await keys.finish('a', 'key', done, TTL_MS);
  t.deepEqual(await keys.claim('a', 'key', { ...request, owner: 'another' }, TTL_MS), done);
  t.like(await redis.hgetall(redisKeys.idempotencyUse()), { 'k a': '1', 'a a': '6' });
});

test('a claim that was lost does not come back over that of another request', async (t) => {
  const { keys, redis } = t.context;
  const another = { ...request, owner: 'another', fingerprint: 'g' };
  await keys.claim('a', 'key', request, TTL_MS);
  await redis.flushdb();
  await keys.claim('a', 'key', another, TTL_MS);
  await keys.finish('a', 'key', { ...request, status: 200 }, TTL_MS);
  t.deepEqual(await keys.get('a', 'key'), another);
});

test('expired keys and answers no longer count and leave nothing behind', async (t) => {
  const { keys, redis } = t.context;
  await answerAll(keys, 'a', 20, 500, 300);
  await waitFor('the keys to expire', async () => (await keys.get('a', 'key-19')) === undefined);
  t.is(await keys.claim('a', 'new', request, TTL_MS), 'claimed');
  t.deepEqual(await redis.hgetall(redisKeys.idempotencyUse()), {
    a: '0',
    k: '1',
    'k a': '1',
  });
  t.is(await redis.zcard(redisKeys.idempotencyEnds()), 1);
  t.is(await redis.exists(redisKeys.idempotencyAnswers('a')), 0);
});

test('a claim counts once a replica has it; one that none confirms leaves the key free', async (t) => {
  await using group = await RedisGroup.start();
  const { redis, confirmation, close } = await openRedis(
    { redis: group.target, confirmingReplicas: 1, region: request.region },
    () => undefined,
  );
  try {
    const keys = new IdempotencyKeys(redis, confirmation);
    const replicas = group.replicas(await group.primary());
    for (const { daemon } of replicas) process.kill(daemon.pid, 'SIGSTOP');
    await t.throwsAsync(keys.claim('a', 'key', request, TTL_MS), { code: 'unavailable' });
    t.is(await keys.get('a', 'key'), undefined);
    for (const { daemon } of replicas) process.kill(daemon.pid, 'SIGCONT');
    t.is(await keys.claim('a', 'key', request, TTL_MS), 'claimed');
    t.deepEqual(await keys.claim('a', 'key', { ...request, owner: 'b' }, TTL_MS), request);
  } finally {
    close();
  }
});
