/* Processes that are short of descriptors, process ids or storage: they live, say so, and recover. */
import anyTest, { type TestFn } from 'ava';
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiClient } from '../helpers/api.ts';
import { descriptorsOf, HeldConnections } from '../helpers/connections.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { ObjectClient, s3UrlOf } from '../helpers/objects.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  objects: ObjectClient;
  diskId: string;
}

const test = (anyTest as TestFn<Context>).serial;

/** Longer than every task that repeats needs for its next turn. */
const STARVED_MS = 6_000;
const DESCRIPTORS = 4096;
const CALL_MS = 1_000;
/** Of control groups of version 1; version 2 has one hierarchy for all. */
const PIDS_ROOT = '/sys/fs/cgroup/pids';

test.before(async (t) => {
  const stack = await Stack.start();
  const api = await stack.newClient();
  const { id: diskId } = await createDisk(api);
  const objects = new ObjectClient(s3UrlOf(stack), api.key);
  Object.assign(t.context, { stack, api, diskId, objects });
  await exec(api, diskId, 'echo content > file');
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const limitDescriptors = (pid: number, count: number): void => {
  execFileSync('prlimit', ['--pid', String(pid), `--nofile=${count}:${DESCRIPTORS}`]);
};

async function recovers({ stack, api, objects, diskId }: Context): Promise<void> {
  await waitFor('recovery', async () => {
    if (!stack.agent.isRunning || !stack.control.isRunning) throw new Error('a process ended');
    const put = await objects.put(diskId, 'new', 'more').catch(() => undefined);
    const ran = await api.call('POST', `/api/disks/${diskId}/exec`, { command: 'cat file new' });
    return put?.status === 200 && ran.status === 200;
  });
}

/** Calls of all kinds, again and again. @returns the statuses of their answers, 0 for none */
async function callThroughout({ api, objects, diskId }: Context, ms: number): Promise<Set<number>> {
  const statuses = new Set<number>();
  const note = (call: Promise<{ status: number }>): Promise<unknown> =>
    Promise.race([
      call.then(
        ({ status }) => statuses.add(status),
        () => statuses.add(0),
      ),
      sleep(CALL_MS), // Without descriptors a server cannot even accept, nor then refuse.
    ]);
  const until = performance.now() + ms;
  while (performance.now() < until) {
    await Promise.all([
      note(api.call('POST', `/api/disks/${diskId}/exec`, { command: 'cat file' })),
      note(api.call('GET', '/api/disks')),
      note(objects.get(diskId, 'file')),
      note(objects.put(diskId, 'new', 'content')),
      sleep(100),
    ]);
  }
  return statuses;
}

test('an agent and a control node without descriptors go on, and serve again with some', async (t) => {
  const { stack } = t.context;
  const pids = [stack.agent.pid, stack.control.pid];
  for (const pid of pids) {
    using held = new HeldConnections();
    limitDescriptors(pid, 3); // Nothing can be opened; what is open stays.
    await held.open(s3UrlOf(stack), 50, { from: '127.9.3.1' });
    const statuses = await callThroughout(t.context, STARVED_MS);
    t.true(statuses.size > 0);
    limitDescriptors(pid, DESCRIPTORS);
    await recovers(t.context);
  }
  t.deepEqual([stack.agent.pid, stack.control.pid], pids);
});

test('descriptors that come and go leave nothing open behind', async (t) => {
  const { stack } = t.context;
  const { pid } = stack.agent;
  await recovers(t.context);
  const before = await descriptorsOf(pid);
  for (let round = 0; round < 20; round += 1) {
    limitDescriptors(pid, (await descriptorsOf(pid)) + (round % 7));
    await callThroughout(t.context, 100);
    limitDescriptors(pid, DESCRIPTORS);
    await callThroughout(t.context, 50);
  }
  await recovers(t.context);
  await waitFor('all of them to be closed', async () => (await descriptorsOf(pid)) <= before + 12);
  t.is(stack.agent.pid, pid);
});

test('an agent that can start no process says so, and goes on when it can', async (t) => {
  const { stack, api, diskId } = t.context;
  const { pid } = stack.agent;
  await recovers(t.context);
  const root = existsSync(PIDS_ROOT) ? PIDS_ROOT : '/sys/fs/cgroup';
  const groups = await readFile(`/proc/${pid}/cgroup`, 'utf8');
  const [, own = '/'] = /^(?:\d+:pids|0:):(.*)$/mu.exec(groups) ?? [];
  const group = join(root, `berth-test-pids-${process.pid}`);
  await mkdir(group);
  try {
    await writeFile(join(group, 'cgroup.procs'), String(pid));
    await writeFile(join(group, 'pids.max'), '1');
    const statuses = new Set<number>();
    await waitFor('a refusal', async () => {
      const { status, body } = await api.call('POST', `/api/disks/${diskId}/exec`, {
        command: 'true',
      });
      statuses.add(status);
      return status === 503 && body.code === 'no_capacity';
    });
    t.is((await api.call('GET', '/api/disks')).status, 200);
    t.false(statuses.has(0));
  } finally {
    await writeFile(join(group, 'pids.max'), 'max');
    const left = (await readFile(join(group, 'cgroup.procs'), 'utf8')).trim().split('\n');
    for (const each of [String(pid), ...left]) {
      await writeFile(join(root, own, 'cgroup.procs'), each).catch(() => undefined);
    }
    await waitFor('the group to empty', async () => {
      await rmdir(group).catch(() => undefined);
      return !existsSync(group);
    });
  }
  await recovers(t.context);
  t.is(stack.agent.pid, pid);
});
