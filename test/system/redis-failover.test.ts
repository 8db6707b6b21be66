/*
 * Commands, disks and keys while the primary of Redis is killed, or paused so that it comes back as
 * one that knows nothing of its successor. What callers were told is compared with what is there.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec, newName } from '../helpers/disks.ts';
import { RedisGroup } from '../helpers/redis-sentinel.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

const CALLERS = 6;

interface Answer {
  readonly id: string;
  readonly code: string;
}

/** Runs a command that leaves its mark each time it runs. */
async function runMarked(api: ApiClient, diskId: string): Promise<Answer> {
  const id = randomBytes(6).toString('hex');
  const command = `echo ${id} >> log`;
  const { body } = await api.call('POST', `/api/disks/${diskId}/exec`, { command });
  return { id, code: body.success ? 'ok' : body.code };
}

/** How often a command may have run, given its answer. */
const runsAllowed: Record<string, readonly [least: number, most: number]> = {
  ok: [1, 1],
  unavailable: [0, 0],
  outcome_unknown: [0, 1],
  timeout: [0, 1],
};

/** Keeps calling until told to stop. @returns all answers */
async function repeat<T>(isOver: () => boolean, call: () => Promise<T>): Promise<T[]> {
  const answers: T[] = [];
  while (!isOver()) {
    answers.push(await call());
    await sleep(20);
  }
  return answers;
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
    const stack = await Stack.start({ ...group.settings, EXEC_TIMEOUT_MS: '15000' });
    try {
      const api = await stack.newClient();
      const { id: diskId } = await createDisk(api);
      let isOver = false;
      const over = (): boolean => isOver;
      const running = Promise.all(
        Array.from({ length: CALLERS }, () => repeat(over, () => runMarked(api, diskId))),
      );
      const making = repeat(over, () => makeDisk(api));
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
      isOver = true;
      const answers = (await running).flat();
      const made = (await making).filter((name) => name !== undefined);

      const { stdout } = await exec(api, diskId, 'cat log');
      const marks = stdout.trimEnd().split('\n');
      const lies = answers.flatMap(({ id, code }) => {
        const runs = marks.filter((mark) => mark === id).length;
        const [least, most] = runsAllowed[code] ?? [1, 0];
        return runs >= least && runs <= most ? [] : [`${id} answered ${code}, ran ${runs} times`];
      });
      t.deepEqual(lies, []);
      t.true(answers.some(({ code }) => code === 'ok'));
      t.true(made.length > 0);
      const lost: string[] = [];
      for (const name of made) {
        const found = await api.data<unknown[]>('GET', `/api/disks?name=${name}`);
        if (found.length === 0) lost.push(name);
      }
      t.deepEqual(lost, [], 'disks that callers were told of');
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
