/*
 * Commands, disks and keys while the primary of Redis is killed, or paused so that it comes back as
 * one that knows nothing of its successor. What callers were told is compared with what is there.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec, newName } from '../helpers/disks.ts';
import { findLies, repeat, runMarked, runMarkedIn } from '../helpers/marked-commands.ts';
import { RedisGroup } from '../helpers/redis-sentinel.ts';
import { containerSettings, createSandbox, execIn, sandboxPath } from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const CALLERS = 6;

/** Creates a sandbox. @returns its id once it was acknowledged */
async function makeSandbox(api: ApiClient): Promise<string | undefined> {
  const { status, body } = await api.call('POST', '/api/sandboxes', { mem_size_mib: 256 });
  await sleep(500); // A few are enough.
  return status < 300 ? (body.data as { sandbox_id: string }).sandbox_id : undefined;
}

/** Creates a disk. @returns its name once it was acknowledged */
async function makeDisk(api: ApiClient): Promise<string | undefined> {
  const name = newName();
  const { status } = await api.call('POST', '/api/disks', { name });
  return status === 201 ? name : undefined;
}

for (const signal of ['SIGKILL', 'SIGSTOP'] as const) {
  test.serial(`nothing runs twice when the primary of Redis gets ${signal}`, async (t) => {
    await using group = await RedisGroup.start();
    const stack = await Stack.start({
      ...{ ...group.settings, ...containerSettings() },
      EXEC_TIMEOUT_MS: '15000',
    });
    try {
      const api = await stack.newClient();
      const { id: diskId } = await createDisk(api);
      let isOver = false;
      const over = (): boolean => isOver;
      const running = Promise.all(
        Array.from({ length: CALLERS }, () => repeat(over, () => runMarked(api, diskId))),
      );
      const making = repeat(over, () => makeDisk(api));
      const { sandbox_id: sandboxId } = await createSandbox(api);
      const inSandbox = repeat(over, () => runMarkedIn(api, sandboxId));
      const makingSandboxes = repeat(over, () => makeSandbox(api));
      await waitFor(
        'a first mark',
        async () => (await exec(api, diskId, 'wc -l < log')).exitCode === 0,
      );

      const former = await group.primary();
      process.kill(former.daemon.pid, signal);
      const next = await group.successor(former);
      t.not(next.port, former.port);
      await waitFor(
        'commands to run again',
        async () => (await runMarked(api, diskId)).code === 'ok',
      );
      if (signal === 'SIGSTOP') process.kill(former.daemon.pid, 'SIGCONT');
      await waitFor('disks to be made again', () => makeDisk(api));
      await waitFor('sandboxes to be made again', () => makeSandbox(api));
      isOver = true;
      const answers = (await running).flat();
      const made = (await making).filter((name) => name !== undefined);

      const { stdout } = await exec(api, diskId, 'cat log');
      t.deepEqual(findLies(answers, stdout), []);
      const { stdout: log } = await execIn(api, sandboxId, 'cat /root/log');
      t.deepEqual(findLies(await inSandbox, log ?? ''), [], 'in the sandbox');
      t.true(answers.some(({ code }) => code === 'ok'));
      t.true(made.length > 0);
      const lost: string[] = [];
      for (const name of made) {
        const found = await api.data<unknown[]>('GET', `/api/disks?name=${name}`);
        if (found.length === 0) lost.push(name);
      }
      for (const id of await makingSandboxes) {
        if (id === undefined) continue;
        const { status } = await api.call('GET', sandboxPath(id));
        if (status !== 200) lost.push(id);
      }
      t.deepEqual(lost, [], 'what callers were told of');
    } finally {
      await stack.stop();
    }
  });
}

test.serial('a change that no replica confirms is not promised', async (t) => {
  await using group = await RedisGroup.start();
  const stack = await Stack.start({ ...group.settings });
  try {
    const api = await stack.newClient();
    const disk = await createDisk(api);
    const replicas = group.replicas(await group.primary());
    for (const { daemon } of replicas) process.kill(daemon.pid, 'SIGSTOP');
    const key = await api.call('POST', '/api/tokens', { name: 'unconfirmed' });
    t.is(key.status, 500);
    t.is(key.body.success ? '' : key.body.code, 'outcome_unknown');
    const name = newName();
    const made = await api.call('POST', '/api/disks', { name });
    t.is(made.status, 503, 'its host has no lease for certain');
    const began = await api.call('POST', `/api/disks/${disk.id}/exec`, { command: 'touch ran' });
    t.is(began.body.success ? '' : began.body.code, 'unavailable', 'the lease is not confirmed');
    t.is((await api.call('GET', `/api/disks/${disk.id}`)).status, 200, 'reads go on');
    for (const { daemon } of replicas) process.kill(daemon.pid, 'SIGCONT');
    await waitFor('commands to run', async () => {
      const { body: reply } = await api.call('POST', `/api/disks/${disk.id}/exec`, {
        command: 'test ! -e ran',
      });
      return reply.success;
    });
    t.true((await api.call('POST', '/api/disks', { name })).status < 300);
  } finally {
    await stack.stop();
  }
});
