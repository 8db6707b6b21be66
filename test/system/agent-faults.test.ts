import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type TestFn } from 'ava';
import type { ApiBody, ApiClient, ApiReply } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { diskContents, hostTraces, newMark, processesMarked } from '../helpers/host.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient }>;

const EXEC_SLOTS = 2;

test.before(async (t) => {
  t.context.stack = await Stack.start({
    EXEC_SLOTS: String(EXEC_SLOTS),
    EXEC_SLOTS_PER_ACCOUNT: String(EXEC_SLOTS),
  });
  t.context.api = await t.context.stack.newClient();
});

// A test that failed half-way may have left the agent dead; the next test must not fail because of
// it.
test.afterEach.always(async (t) => {
  const { stack } = t.context;
  if (!stack.agent.isRunning) await stack.startAgent();
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const post = (api: ApiClient, diskId: string, command: string): Promise<ApiReply<ApiBody>> =>
  api.call('POST', `/api/disks/${diskId}/exec`, { command });

const isRunning = (mark: string) => async (): Promise<boolean> =>
  (await processesMarked(mark)).length > 0;

const isGone = (mark: string) => async (): Promise<boolean> =>
  (await processesMarked(mark)).length === 0;

test.serial('a command whose agent is killed ends with it', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'seq 100000 > data; sha256sum data > sum; sync data sum');
  const mark = newMark();
  const command = `export ${mark}; echo begun > begun; sync begun; (setsid sleep 1000 > held &); sleep 1000`;
  const call = post(api, id, command);
  await waitFor('the command', async () => {
    const found = await processesMarked(mark);
    return found.filter((line) => /^\d+ sleep /u.test(line)).length === 2;
  });
  const before = await hostTraces(stack);
  t.true(before.some((trace) => trace.includes(id)));

  await stack.agent.stop('SIGKILL');
  const reply = await call; // Long before the command's time-out.
  t.is(reply.status, 500);
  t.is(reply.body.code, 'outcome_unknown');
  await waitFor('the command to end with its agent', isGone(mark));

  await stack.startAgent();
  await waitFor('the log', async () => (await stack.agent.readLog()).includes('reclaim:execLost'));
  const after = new Set(await hostTraces(stack));
  t.deepEqual(
    before.filter((trace) => after.has(trace)),
    [],
  );
  const next = await exec(api, id, 'sha256sum --check --status sum && cat begun && ls');
  t.is(next.stdout, 'begun\nbegun\ndata\nheld\nsum\n');
});

test.serial('the agent is killed: jobs still in its queue never begin', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  process.kill(stack.agent.pid, 'SIGSTOP');
  const calls = Array.from({ length: 3 }, () => post(api, id, 'echo x >> ran'));
  const redis = await stack.redisClient();
  await waitFor('the queue', async () => {
    const [queue] = await redis.keys('*:bull:exec-*:wait');
    return queue !== undefined && (await redis.llen(queue)) > 1; // The agent may still take a job.
  });
  await stack.agent.stop('SIGKILL');
  const replies = await Promise.all(calls);
  const refused = replies.filter(({ status }) => status === 503);
  t.true(refused.length >= 2);
  for (const { body, headers } of refused) {
    t.is(body.code, 'unavailable');
    t.true(Number(headers.get('retry-after')) > 0);
  }
  t.is((await post(api, id, 'echo x >> ran')).status, 503);
  await stack.startAgent();
  t.is((await exec(api, id, 'ls')).stdout, '');
});

test.serial('the agent is killed: commands that waited for their turn did not run', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  const mark = newMark();
  const ahead = Array.from({ length: EXEC_SLOTS }, () =>
    post(api, id, `export ${mark}; exec sleep 1000`),
  );
  await waitFor('the commands', async () => (await processesMarked(mark)).length >= EXEC_SLOTS);
  const waiting = Array.from({ length: 3 }, () => post(api, id, 'echo x >> ran'));
  await sleep(300);
  await stack.agent.stop('SIGKILL');
  for (const { status, body } of await Promise.all(ahead)) {
    t.deepEqual([status, body.code], [500, 'outcome_unknown']);
  }
  for (const { body } of await Promise.all(waiting)) {
    t.true(['outcome_unknown', 'unavailable'].includes(body.code), body.code);
  }
  await stack.startAgent();
  t.is((await exec(api, id, 'ls')).stdout, '');
});

test.serial('the agent is killed at any moment, again and again', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  const other = await createDisk(api);
  for (let round = 0; round < (isFull ? 20 : 4); round += 1) {
    const mark = newMark();
    const calls = [id, other.id, id].map((disk) =>
      post(api, disk, `export ${mark}; echo ${round} >> rounds; sleep 0.05; sync rounds`),
    );
    await sleep(round * 37);
    await stack.agent.stop('SIGKILL');
    for (const { status, body } of await Promise.all(calls)) {
      if (status === 200) continue;
      t.true(['outcome_unknown', 'unavailable', 'no_capacity'].includes(body.code), body.code);
    }
    await waitFor('the commands to end', isGone(mark));
    await stack.startAgent();
    t.is((await exec(api, id, 'echo well')).stdout, 'well\n');
  }
  t.is((await exec(api, other.id, 'echo well')).stdout, 'well\n');
});

test.serial('SIGTERM: commands under way are answered, new ones refused', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  const mark = newMark();
  const call = post(api, id, `export ${mark}; until [ -e go ]; do sleep 0.05; done; echo end`);
  await waitFor('the command', isRunning(mark));
  const stopped = stack.agent.stop('SIGTERM');
  await waitFor('draining', async () => (await stack.agent.readLog()).includes('process:stopping'));
  const late = post(api, id, 'touch late');
  await sleep(100); // Delayed, so that it arrives while the first command still runs.
  await writeFile(join(diskContents(stack, id), 'go'), '');
  t.like((await call).body.data, { stdout: 'end\n', exitCode: 0 });
  t.is((await late).status, 503);
  t.true(Number((await late).headers.get('retry-after')) > 0);
  t.is(await stopped, 0);
  t.deepEqual(await hostTraces(stack), []);
  await stack.startAgent();
  t.is((await exec(api, id, 'ls')).stdout, 'go\n');
});

(isFull ? test.serial : test.serial.skip)(
  'SIGTERM: a command that does not end is ended',
  async (t) => {
    const { stack, api } = t.context;
    const { id } = await createDisk(api);
    const mark = newMark();
    const call = post(api, id, `export ${mark}; trap "" TERM; sleep 1000`);
    await waitFor('the command', isRunning(mark));
    t.is(await stack.agent.stop('SIGTERM'), 0);
    t.is((await call).body.code, 'outcome_unknown');
    t.deepEqual(await processesMarked(mark), []);
    t.deepEqual(await hostTraces(stack), []);
    await stack.startAgent();
  },
);

test.serial('the control node is killed: the agent finds the next one', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  const mark = newMark();
  const command = `export ${mark}; until [ -e go ]; do sleep 0.05; done; touch done`;
  const call = post(api, id, command).catch(() => 'cut off');
  await waitFor('the command', isRunning(mark));
  await stack.control.stop('SIGKILL');
  t.is(await call, 'cut off');
  await stack.startControl();
  const next = await waitFor('the agent', async () => {
    const reply = await post(
      api,
      id,
      'touch go; until [ -e done ]; do sleep 0.05; done; echo well',
    );
    return reply.status === 200 && reply.body.data;
  });
  t.like(next, { stdout: 'well\n' });
});

test.serial('Redis goes away and comes back: a command under way is still answered', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  const mark = newMark();
  const call = post(api, id, `export ${mark}; until [ -e go ]; do sleep 0.05; done; echo done`);
  await waitFor('the command', isRunning(mark));
  await stack.redis.stop('SIGKILL');
  const away = await post(api, id, 'true');
  t.is(away.status, 503);
  await stack.startRedis();
  await waitFor('the directory', async () => (await post(api, id, 'touch go')).status === 200);
  t.like((await call).body.data, { stdout: 'done\n' });
  t.is((await exec(api, id, 'ls')).stdout, 'go\n');
});
