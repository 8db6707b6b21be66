/*
 * The agent is killed before and after everything that it does to the host and every write to its
 * journal, while it creates, starts, stops and deletes sandboxes. Which points there are is learnt
 * by doing each once. Ordinary runs try a sample drawn with a seed, BERTH_TEST_FULL=1 all of them.
 */
import assert from 'node:assert';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { ApiReply } from '../helpers/api.ts';
import { type CrashContext, crashTest } from '../helpers/crash-test.ts';
import {
  type ApiSandbox,
  commandSandbox,
  createSandbox,
  findSandbox,
  getSandbox,
  machinesOf,
  outputOf,
  removeSandbox,
  restartCrashed,
  sandboxPath,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

const SAMPLE = 1;
const seed = Number(process.env['BERTH_TEST_SEED'] ?? Math.floor(Date.now() / 1000) % 100_000);

const test = crashTest(sandboxSettings());

// The making of a template is among the steps that an agent is killed in.
delete process.env['TEMPLATES_DIR'];

/** A sample of the failpoints, the same for the same seed. */
function sample(points: readonly string[]): string[] {
  const distinct = [...new Set(points)];
  if (isFull) return distinct;
  let state = seed;
  const next = (): number => (state = (state * 1_103_515_245 + 12_345) % 2 ** 31);
  return distinct
    .map((point) => ({ point, order: next() }))
    .sort((a, b) => a.order - b.order)
    .slice(0, SAMPLE)
    .map(({ point }) => point);
}

/** Things on the host that belong to no sandbox. */
async function findOthers({ stack, api }: CrashContext): Promise<string[]> {
  const { sandboxes } = await api.data<{ sandboxes: ApiSandbox[] }>('GET', '/api/sandboxes');
  const ids = new Set(sandboxes.map((sandbox) => sandbox.sandbox_id));
  const dataDir = stack.environment['AGENT_DATA_DIR'] ?? '';
  const kept = await readdir(join(dataDir, 'sandboxes')).catch(() => []);
  const running = sandboxes.filter(({ status }) => status === 'running');
  const machines = await machinesOf([...ids]);
  const isRight = machines.length === running.length;
  return [
    ...kept.filter((name) => !ids.has(name)),
    ...(isRight ? [] : [`${running.length} run, on ${machines.join(', ') || 'no machine'}`]),
  ];
}

/** Asserts that everything left on the host soon belongs to an existing sandbox. */
async function assertNothingElse(context: CrashContext): Promise<void> {
  let others: string[] = [];
  const isAll = async (): Promise<boolean> => (others = await findOthers(context)).length === 0;
  await waitFor('nothing else to be there', isAll).catch(() => undefined);
  assert.deepEqual(others, []);
}

const SETTLED_MS = 120_000;

test.serial('create: done or undone, at whatever failpoint the agent is killed', async (t) => {
  const { api, stack, points } = t.context;
  // The first one boots; later ones start from its template and reach other failpoints.
  const booted = await createSandbox(api);
  await waitFor(
    'the template',
    async () => points.hasReached('after publish template'),
    SETTLED_MS,
  );
  await removeSandbox(api, booted.sandbox_id);
  await points.takeReached();
  const first = await createSandbox(api);
  const reached = sample(await points.takeReached());
  await removeSandbox(api, first.sandbox_id);
  t.log({ seed, reached });
  for (const point of reached) {
    await points.arm(point);
    const name = `crash-${Math.random().toString(36).slice(2)}`;
    const creating = api.call('POST', '/api/sandboxes?wait=true', { name, mem_size_mib: 256 });
    await waitFor('the crash', async () => !stack.agent.isRunning, SETTLED_MS);
    await points.disarm();
    await stack.startAgent();
    const { status, body } = await creating;
    if (status === 202) {
      const { sandbox_id: id } = body.data as ApiSandbox;
      t.is((await settledSandbox(api, id)).status, 'running', point);
      t.is(await outputOf(api, id, 'echo alive'), 'alive\n');
      await removeSandbox(api, id);
    } else {
      t.true([503, 504].includes(status), `${point}: ${status} ${JSON.stringify(body)}`);
      await waitFor(
        `nothing to remain (${point})`,
        async () => (await findSandbox(api, name)) === undefined,
      );
      const again = await api.call('POST', '/api/sandboxes', { name, mem_size_mib: 256 });
      t.is(again.status, 202, `${point}: ${JSON.stringify(again.body)}`);
      const { sandbox_id: id } = again.body.data as ApiSandbox;
      await settledSandbox(api, id);
      await removeSandbox(api, id);
    }
    await assertNothingElse(t.context);
  }
});

test.serial('start and stop: the disk is intact, and the sandbox can be used again', async (t) => {
  const { api, stack, points } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await outputOf(api, id, 'seq 100000 > /root/kept && sha256sum /root/kept > /root/sum && sync');
  await points.takeReached();
  await commandSandbox(api, id, 'stop');
  await settledSandbox(api, id);
  const stopping = sample(await points.takeReached());
  await commandSandbox(api, id, 'start');
  await settledSandbox(api, id);
  const starting = sample(await points.takeReached());
  t.log({ seed, starting, stopping });
  const steps = [
    ...stopping.map((point) => ({ command: 'stop', point }) as const),
    ...starting.map((point) => ({ command: 'start', point }) as const),
  ];
  for (const { command, point } of steps) {
    const opposite = command === 'stop' ? 'running' : 'stopped';
    await commandSandbox(api, id, command === 'stop' ? 'start' : 'stop');
    t.is((await settledSandbox(api, id)).status, opposite);
    await points.arm(point);
    const commanded = commandSandbox(api, id, command);
    await waitFor(`the crash ${point}`, async () => !stack.agent.isRunning, SETTLED_MS);
    await points.disarm();
    await stack.startAgent();
    await commanded;
    await waitFor('the host', async () => (await commandSandbox(api, id, 'start')).status !== 503);
    const settled = await settledSandbox(api, id);
    if (settled.status !== 'running') {
      t.is((await commandSandbox(api, id, 'start')).status, 200, `${command} ${point}`);
      t.is((await settledSandbox(api, id)).status, 'running');
    }
    await outputOf(api, id, 'sha256sum -c /root/sum');
    await assertNothingElse(t.context);
  }
  await removeSandbox(api, id);
});

const DIRTY = 'head -c 4000000 /dev/urandom > /run/random; sha256sum /run/random';
const CHECK = 'sha256sum /run/random';

/** Arms a failpoint, performs the action, and restarts the agent that was killed at it. */
async function crashAt(
  { stack, points }: CrashContext,
  point: string,
  command: () => Promise<unknown>,
): Promise<string[]> {
  await points.takeReached();
  await points.arm(point);
  const commanded = command();
  await waitFor(`the crash ${point}`, async () => !stack.agent.isRunning, SETTLED_MS);
  const reached = await points.takeReached();
  await points.disarm();
  await stack.startAgent();
  await commanded;
  return reached;
}

test.serial('pause and resume: memory survives, unless the checkpoint was used up', async (t) => {
  const { api, points } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  let sum = await outputOf(api, id, DIRTY);
  const command = async (name: 'pause' | 'resume' | 'start', status: string): Promise<void> => {
    await waitFor('the host', async () => (await commandSandbox(api, id, name)).status === 200);
    await waitFor(
      `${name} to end`,
      async () => (await getSandbox(api, id)).status === status,
      SETTLED_MS,
    );
  };
  await points.takeReached();
  await command('pause', 'paused');
  const pausing = await points.takeReached();
  await command('resume', 'running');
  const resuming = await points.takeReached();
  const steps = [
    ...sample(pausing).map((point) => ({ name: 'pause', point }) as const),
    ...sample(resuming).map((point) => ({ name: 'resume', point }) as const),
  ];
  t.log({ seed, steps });
  for (const { name, point } of steps) {
    if (name === 'resume') await command('pause', 'paused');
    const reached = await crashAt(t.context, point, () => commandSandbox(api, id, name));
    const settled = await settledSandbox(api, id);
    if (settled.status === 'paused') await command('resume', 'running');
    const isUsed = name === 'resume' && reached.includes('before invalidate checkpoint');
    if (settled.status === 'failed') {
      t.true(isUsed, `${name} ${point}: ${JSON.stringify(settled)}`);
      await command('start', 'running');
      sum = await outputOf(api, id, DIRTY);
    }
    t.is(await outputOf(api, id, CHECK), sum, `${name} ${point}`);
    await assertNothingElse(t.context);
  }
  await removeSandbox(api, id);
});

test.serial('fork: the source runs on, and the copy is complete or absent', async (t) => {
  const { api, points } = t.context;
  const list = async (): Promise<string[]> => {
    const all = await api.data<{ sandboxes: ApiSandbox[] }>('GET', '/api/sandboxes');
    return all.sandboxes.map((sandbox) => sandbox.sandbox_id);
  };
  const before = await list(); // A test that failed has left its own.
  const { sandbox_id: id } = await createSandbox(api, { copy_hook: 'true' });
  const sum = await outputOf(api, id, DIRTY);
  const others = async (): Promise<string[]> =>
    (await list()).filter((other) => other !== id && !before.includes(other));
  const check = async ({ isUsed }: { isUsed: boolean }): Promise<void> => {
    for (const child of await others()) {
      const settled = await settledSandbox(api, child);
      if (isUsed && settled.status === 'failed') {
        await commandSandbox(api, child, 'start');
        t.is((await settledSandbox(api, child)).status, 'running');
      } else {
        t.is(settled.status, 'running', JSON.stringify(settled));
        t.is(await outputOf(api, child, CHECK), sum);
      }
      await removeSandbox(api, child);
    }
  };
  // Writes to the disk, because only then does a fork need another layer.
  const write = (): Promise<string> => outputOf(api, id, 'date > /root/written; sync');
  await write();
  await points.takeReached();
  await commandSandbox(api, id, 'fork');
  for (const child of await others()) await settledSandbox(api, child);
  const forking = await points.takeReached();
  await check({ isUsed: false });
  // The hook of the copy runs after this point.
  const chosen = [...new Set([...sample(forking), 'after journal hook'])];
  t.log({ seed, chosen });
  for (const point of chosen) {
    let reply: ApiReply | undefined;
    await write();
    const reached = await crashAt(t.context, point, async () => {
      reply = await commandSandbox(api, id, 'fork');
    });
    await waitFor('the host', async () => (await commandSandbox(api, id, 'start')).status === 200);
    t.is((await settledSandbox(api, id)).status, 'running', point);
    t.is(await outputOf(api, id, CHECK), sum, point);
    if (reply?.status !== 202) {
      await waitFor(`nothing to remain (${point})`, async () => (await others()).length === 0);
    }
    // After this point the copy's memory and disk may no longer match.
    await check({ isUsed: reached.slice(0, -1).includes('after load devices') });
    await assertNothingElse(t.context);
  }
  await removeSandbox(api, id);
});

test.serial('delete: the sandbox is gone, or can be deleted again', async (t) => {
  const { api, points } = t.context;
  const make = async (): Promise<string> => {
    const { sandbox_id: id } = await createSandbox(api);
    await commandSandbox(api, id, 'stop');
    await settledSandbox(api, id);
    return id;
  };
  const first = await make();
  await points.takeReached();
  await api.call('DELETE', sandboxPath(first));
  const reached = sample(await points.takeReached());
  t.log({ seed, reached });
  for (const point of reached) {
    const id = await make();
    await points.arm(point);
    const deleting = api.call('DELETE', sandboxPath(id));
    await waitFor('the crash', async () => !t.context.stack.agent.isRunning, SETTLED_MS);
    await points.disarm();
    await restartCrashed(t.context.stack);
    const { status } = await deleting;
    if (status !== 204) {
      await waitFor(`it to be gone (${point})`, async () => {
        const again = await api.call('DELETE', sandboxPath(id));
        return [204, 404].includes(again.status);
      });
    }
    await t.throwsAsync(getSandbox(api, id));
    await assertNothingElse(t.context);
  }
});
