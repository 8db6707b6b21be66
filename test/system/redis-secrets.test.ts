/*
 * Redis, and so its file and every copy of it, reveals nothing that callers entrusted to the
 * service: commands, environments, what they search for.
 */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createDisk } from '../helpers/disks.ts';
import { dumpRedis } from '../helpers/redis-contents.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const SECRET = 'hunter2-in-a-command';

const test = stackTest();

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
