/*
 * What lies in Redis, and so in its file and in every copy of it, tells nothing that callers
 * entrusted to the service: commands, environments, what they search for.
 */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk } from '../helpers/disks.ts';
import { dumpRedis } from '../helpers/redis-contents.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient }>;
const SECRET = 'hunter2-in-a-command';

test.before(async (t) => {
  t.context.stack = await Stack.start();
  t.context.api = await t.context.stack.newClient();
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

test('commands and patterns are not in Redis, queued or done', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  const path = `/api/disks/${id}`;
  const redis = await stack.redisClient();
  process.kill(stack.agent.pid, 'SIGSTOP');
  const calls = [
    api.call('POST', `${path}/exec`, { command: `echo ${SECRET}` }),
    api.call('POST', `${path}/grep`, { directory: '', pattern: SECRET }),
    api.call(
      'POST',
      `${path}/exec`,
      { command: `echo ${SECRET}` },
      { 'idempotency-key': 'one-of-its-own' },
    ),
  ];
  await waitFor('the jobs', async () => {
    const [queue] = await redis.keys('*:bull:exec-*:wait');
    return queue !== undefined && (await redis.llen(queue)) >= calls.length - 1;
  });
  const queued = await dumpRedis(redis);
  process.kill(stack.agent.pid, 'SIGCONT');
  t.regex(queued, /"sealed/u);
  t.false(queued.includes(SECRET));
  for (const reply of await Promise.all(calls)) t.is(reply.status, 200);
  t.false((await dumpRedis(redis)).includes(SECRET));
  const folder = join(stack.directory, 'appendonlydir');
  for (const name of await readdir(folder)) {
    t.false((await readFile(join(folder, name), 'latin1')).includes(SECRET), name);
  }
});
