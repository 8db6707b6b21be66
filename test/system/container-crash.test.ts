/*
 * The agent is killed before and after everything that it does to the host and every write to its
 * journal, while its sandboxes are containers. Which points there are is learnt by doing each
 * action once. Ordinary runs try a sample drawn with a seed, BERTH_TEST_FULL=1 all of them.
 */
import assert from 'node:assert';
import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { ApiClient } from '../helpers/api.ts';
import { type CrashContext, crashTest } from '../helpers/crash-test.ts';
import { loopFiles } from '../helpers/loops.ts';
import {
  type ApiSandbox,
  bring,
  commandSandbox,
  containerSettings,
  createSandbox,
  outputOf,
  removeSandbox,
  sandboxPath,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

const seed = Number(process.env['BERTH_TEST_SEED'] ?? Math.floor(Date.now() / 1000) % 100_000);

const test = crashTest(containerSettings());

/** A single point, or all of them. */
function sample(points: readonly string[]): string[] {
  const distinct = [...new Set(points)];
  const one = distinct[seed % Math.max(1, distinct.length)];
  return isFull || one === undefined ? distinct : [one];
}

const listed = async (api: ApiClient): Promise<ApiSandbox[]> =>
  (await api.data<{ sandboxes: ApiSandbox[] }>('GET', '/api/sandboxes')).sandboxes;

/** Everything on the host belongs to a sandbox that is listed, and fits its state. */
async function assertNothingElse({ stack, api }: CrashContext): Promise<void> {
  const directory = join(stack.environment['AGENT_DATA_DIR'] ?? '', 'sandboxes');
  const look = async (): Promise<Record<string, unknown>> => {
    const sandboxes = await listed(api);
    const up = sandboxes.filter(({ status }) => status === 'running' || status === 'paused');
    const kept = await readdir(directory);
    const runs = kept.filter((id) => existsSync(join(directory, id, 'run')));
    return {
      unknown: kept.filter((id) => sandboxes.every(({ sandbox_id: known }) => known !== id)),
      passing: sandboxes.filter(({ status }) => status.endsWith('ing') && status !== 'running')
        .length,
      disks:
        [...loopFiles().values()].filter((file) => file.startsWith(directory)).length - up.length,
      runs: runs.length - up.length,
    };
  };
  let found = {};
  await waitFor('the host to have no more than that', async () => {
    found = await look();
    return isDeepStrictEqual(found, { unknown: [], passing: 0, disks: 0, runs: 0 });
  }).catch((cause: unknown) => {
    throw new Error(JSON.stringify(found), { cause });
  });
  const mounts = (await readFile('/proc/self/mountinfo', 'utf8')).split('\n');
  assert.deepEqual(
    mounts.filter((line) => line.includes(directory)),
    [],
  );
}

/** Kills the agent at the point that the action reaches, and starts another one. */
async function crashAt(
  { stack, points }: CrashContext,
  point: string,
  action: () => Promise<unknown>,
): Promise<void> {
  await points.arm(point);
  const done = action().catch(() => undefined);
  await waitFor(`the crash ${point}`, async () => !stack.agent.isRunning, 60_000);
  await points.disarm();
  await stack.startAgent();
  await done;
}

/** The points that an action reaches. */
async function learn({ points }: CrashContext, action: () => Promise<unknown>): Promise<string[]> {
  await points.takeReached();
  await action();
  return sample(await points.takeReached());
}

const DIRTY =
  'echo kept > /root/name; head -c 100000 /dev/urandom > /run/random; sha256sum /run/random';
const CHECK = 'cat /root/name > /dev/null; sha256sum /run/random';

/** Brings a sandbox to a state, whatever a crash left it in. */
async function settle(api: ApiClient, id: string, status: 'running' | 'paused'): Promise<void> {
  const commands: Record<string, 'start' | 'resume' | 'pause'> = {
    paused: 'resume',
    running: 'pause',
  };
  for (let tries = 0; ; tries += 1) {
    const settled = await settledSandbox(api, id);
    if (settled.status === status) return;
    assert(tries < 50, JSON.stringify(settled));
    await commandSandbox(api, id, commands[settled.status] ?? 'start');
  }
}

test.serial('memory and disk of a sandbox survive a crash in its pause or resume', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const sum = await outputOf(api, id, DIRTY);
  const pausing = await learn(t.context, () => bring(api, id, 'pause', 'paused'));
  const resuming = await learn(t.context, () => bring(api, id, 'resume', 'running'));
  t.log({ seed, pausing, resuming });
  for (const point of pausing) {
    await crashAt(t.context, point, () => commandSandbox(api, id, 'pause'));
    await settle(api, id, 'running');
    t.is(await outputOf(api, id, CHECK), sum, point);
  }
  for (const point of resuming) {
    await settle(api, id, 'paused');
    await crashAt(t.context, point, () => commandSandbox(api, id, 'resume'));
    await settle(api, id, 'running');
    t.is(await outputOf(api, id, CHECK), sum, point);
  }
  await assertNothingElse(t.context);
  await removeSandbox(api, id);
});

test.serial('a crash in a fork leaves the source as it was, and a copy or none', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const sum = await outputOf(api, id, DIRTY);
  const removeOthers = async (): Promise<void> => {
    for (const { sandbox_id: other } of await listed(api)) {
      if (other === id) continue;
      await settle(api, other, 'running');
      t.is(await outputOf(api, other, 'cat /root/name'), 'kept\n');
      await removeSandbox(api, other);
    }
  };
  const forking = await learn(t.context, async () => {
    await commandSandbox(api, id, 'fork');
    for (const { sandbox_id: other } of await listed(api)) await settledSandbox(api, other);
  });
  await removeOthers();
  t.log({ seed, forking });
  for (const point of forking) {
    await crashAt(t.context, point, () => commandSandbox(api, id, 'fork'));
    await settle(api, id, 'running');
    t.is(await outputOf(api, id, CHECK), sum, point);
    await assertNothingElse(t.context);
    await removeOthers();
  }
  await assertNothingElse(t.context);
  await removeSandbox(api, id);
});

test.serial('a crash in a start, a stop or a deletion leaves nothing behind', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await outputOf(api, id, DIRTY);
  const stopping = await learn(t.context, () => bring(api, id, 'stop', 'stopped'));
  const starting = await learn(t.context, () => bring(api, id, 'start', 'running'));
  t.log({ seed, stopping, starting });
  const steps = [
    ...stopping.map((point) => ['stop', point] as const),
    ...starting.map((point) => ['start', point] as const),
  ];
  for (const [command, point] of steps) {
    if (command === 'start') {
      await settle(api, id, 'running');
      await bring(api, id, 'stop', 'stopped');
    }
    await crashAt(t.context, point, () => commandSandbox(api, id, command));
    await settledSandbox(api, id);
    await assertNothingElse(t.context);
    await settle(api, id, 'running');
    t.is(await outputOf(api, id, 'cat /root/name'), 'kept\n', point);
  }
  await bring(api, id, 'pause', 'paused');
  const giving = await learn(t.context, () => bring(api, id, 'stop', 'stopped'));
  for (const point of giving) {
    await bring(api, id, 'start', 'running');
    await bring(api, id, 'pause', 'paused');
    await crashAt(t.context, point, () => commandSandbox(api, id, 'stop'));
    await settledSandbox(api, id);
    await assertNothingElse(t.context);
    await commandSandbox(api, id, 'stop');
    t.is((await settledSandbox(api, id)).status, 'stopped');
  }
  const remove = (): Promise<unknown> => api.call('DELETE', sandboxPath(id));
  const [point = 'before remove disk'] = isFull ? ['before remove sandbox'] : [];
  await crashAt(t.context, point, remove);
  await waitFor('it to be gone', async () => (await listed(api)).length === 0);
  await assertNothingElse(t.context);
});
