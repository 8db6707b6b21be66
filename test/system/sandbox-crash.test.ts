/*
 * The agent is killed before and after everything that it does to the host and every write to its
 * journal, while it creates, starts, stops and deletes sandboxes. Which points there are is learnt by
 * doing each once. Ordinary runs try a sample drawn with a seed, BERTH_TEST_FULL=1 all of them.
 */
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import {
  assertNothingElse,
  CrashPoints,
  pointsSeed,
  samplePoints,
} from '../helpers/crash-points.ts';
import {
  type ApiSandbox,
  commandSandbox,
  createSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
  restartCrashed,
  sandboxPath,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly points: CrashPoints;
}
const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const points = new CrashPoints(join(process.cwd(), `.local/crash-${process.pid}`));
  const stack = await Stack.start({ ...sandboxSettings(), ...points.settings });
  Object.assign(t.context, { stack, points, api: await stack.newClient() });
});

test.after.always(async (t) => {
  await t.context.points.disarm();
  await t.context.stack.stop();
  await t.context.points.takeReached();
});

const SETTLED_MS = 120_000;

test.serial('create: done or undone, whatever point the agent is killed at', async (t) => {
  const { api, stack, points } = t.context;
  // The first one boots; those that come after its template go other ways.
  const booted = await createSandbox(api);
  await waitFor(
    'the template',
    async () => points.hasReached('after publish template'),
    SETTLED_MS,
  );
  await removeSandbox(api, booted.sandbox_id);
  await points.takeReached();
  const first = await createSandbox(api);
  const reached = samplePoints(await points.takeReached());
  await removeSandbox(api, first.sandbox_id);
  t.log({ seed: pointsSeed, reached });
  for (const point of reached) {
    await points.arm(point);
    const name = `crash-${Math.random().toString(36).slice(2)}`;
    const creating = api.call('POST', '/api/sandboxes?wait=true', { name, mem_size_mib: 256 });
    await waitFor('the crash', async () => !stack.agent.isRunning, SETTLED_MS);
    await points.disarm();
    await stack.startAgent();
    const { status, body } = await creating;
    const found = async (): Promise<ApiSandbox | undefined> => {
      const all = await api.data<{ sandboxes: ApiSandbox[] }>('GET', '/api/sandboxes');
      return all.sandboxes.find((sandbox) => sandbox.name === name);
    };
    if (status === 202) {
      const { sandbox_id: id } = body.data as ApiSandbox;
      t.is((await settledSandbox(api, id)).status, 'running', point);
      t.is(await outputOf(api, id, 'echo alive'), 'alive\n');
      await removeSandbox(api, id);
    } else {
      t.true([503, 504].includes(status), `${point}: ${status} ${JSON.stringify(body)}`);
      await waitFor(`nothing to remain (${point})`, async () => (await found()) === undefined);
      const again = await api.call('POST', '/api/sandboxes', { name, mem_size_mib: 256 });
      t.is(again.status, 202, `${point}: ${JSON.stringify(again.body)}`);
      const { sandbox_id: id } = again.body.data as ApiSandbox;
      await settledSandbox(api, id);
      await removeSandbox(api, id);
    }
    await assertNothingElse(stack, api);
  }
});

test.serial('start and stop: the disk is whole, and the sandbox goes on', async (t) => {
  const { api, stack, points } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await outputOf(api, id, 'seq 100000 > /root/kept && sha256sum /root/kept > /root/sum && sync');
  await points.takeReached();
  await commandSandbox(api, id, 'stop');
  await settledSandbox(api, id);
  const stopping = samplePoints(await points.takeReached());
  await commandSandbox(api, id, 'start');
  await settledSandbox(api, id);
  const starting = samplePoints(await points.takeReached());
  t.log({ seed: pointsSeed, starting, stopping });
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
    await assertNothingElse(stack, api);
  }
  await removeSandbox(api, id);
});

test.serial('delete: it is gone, or can be deleted again', async (t) => {
  const { api, stack, points } = t.context;
  const make = async (): Promise<string> => {
    const { sandbox_id: id } = await createSandbox(api);
    await commandSandbox(api, id, 'stop');
    await settledSandbox(api, id);
    return id;
  };
  const first = await make();
  await points.takeReached();
  await api.call('DELETE', sandboxPath(first));
  const reached = samplePoints(await points.takeReached());
  t.log({ seed: pointsSeed, reached });
  for (const point of reached) {
    const id = await make();
    await points.arm(point);
    const deleting = api.call('DELETE', sandboxPath(id));
    await waitFor('the crash', async () => !stack.agent.isRunning, SETTLED_MS);
    await points.disarm();
    await restartCrashed(stack);
    const { status } = await deleting;
    if (status !== 204) {
      await waitFor(`it to be gone (${point})`, async () => {
        const again = await api.call('DELETE', sandboxPath(id));
        return [204, 404].includes(again.status);
      });
    }
    await t.throwsAsync(getSandbox(api, id));
    await assertNothingElse(stack, api);
  }
});
