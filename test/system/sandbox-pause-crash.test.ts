/*
 * The agent is killed before and after everything that it does to the host and every write to its
 * journal, while it pauses, resumes and forks sandboxes. Which points there are is learnt by doing
 * each once. Ordinary runs try a sample drawn with a seed, BERTH_TEST_FULL=1 all of them.
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
  bring,
  commandSandbox,
  createSandbox,
  forkSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
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
const SETTLED_MS = 120_000;

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

/** Does something during which the agent is killed at the point, and starts it again. */
async function crashAt(
  { stack, points, api }: Context,
  point: string,
  act: () => Promise<unknown>,
): Promise<void> {
  await points.arm(point);
  const acting = act();
  await waitFor(`the crash ${point}`, async () => !stack.agent.isRunning, SETTLED_MS);
  await points.disarm();
  await stack.startAgent();
  await acting;
  await waitFor('the host', async () => (await api.call('GET', '/api/sandboxes')).status === 200);
}

/** Once the host answers again. */
const command = (api: ApiClient, id: string, name: 'pause' | 'resume'): Promise<number> =>
  waitFor(`${name} to be answered`, async () => {
    const { status } = await commandSandbox(api, id, name);
    return status !== 503 && status;
  });

/** Begins to count in memory only. */
const COUNTER =
  "setsid bash -c 'n=0; while sleep 0.05; do n=$((n+1)); echo $n >/run/count; done' >/dev/null 2>&1 &";
const UNTIL_COUNTED = 'until test -s /run/count; do sleep 0.1; done; cat /run/count';

test.serial(
  'pause and resume: it goes on where it was, or from its disk when it says so',
  async (t) => {
    const { api, stack, points } = t.context;
    const { sandbox_id: id } = await createSandbox(api);
    await outputOf(api, id, 'seq 100000 > /root/kept && sha256sum /root/kept > /root/sum && sync');
    await outputOf(api, id, COUNTER);
    let count = Number(await outputOf(api, id, UNTIL_COUNTED));
    await points.takeReached();
    await bring(api, id, 'pause', 'paused');
    const pausing = samplePoints(await points.takeReached());
    await bring(api, id, 'resume', 'running');
    const resuming = samplePoints(await points.takeReached());
    t.log({ seed: pointsSeed, pausing, resuming });
    const steps = [
      ...pausing.map((point) => ({ name: 'pause', point }) as const),
      ...resuming.map((point) => ({ name: 'resume', point }) as const),
    ];
    let failures = 0;
    for (const { name, point } of steps) {
      if (name === 'resume') await bring(api, id, 'pause', 'paused');
      await crashAt(t.context, point, () => commandSandbox(api, id, name));
      let { status, exit_reason: reason } = await settledSandbox(api, id);
      // Either it was done, or it was not: then it can be done again.
      if (name === 'pause' && status === 'running')
        t.is(await command(api, id, 'pause'), 200, point);
      ({ status, exit_reason: reason } = await settledSandbox(api, id));
      if (status === 'paused') t.is(await command(api, id, 'resume'), 200, point);
      ({ status, exit_reason: reason } = await settledSandbox(api, id));
      if (status === 'failed') {
        failures += 1;
        t.deepEqual([name, reason], ['resume', 'resume_failed'], point);
        await bring(api, id, 'start', 'running');
        await outputOf(api, id, COUNTER);
        count = 0;
      } else {
        t.is(status, 'running', point);
      }
      await outputOf(api, id, 'sha256sum -c /root/sum');
      const counted = Number(await outputOf(api, id, UNTIL_COUNTED));
      t.true(counted >= count, `${point}: ${counted} after ${count}`);
      count = counted;
      const goesOn = async (): Promise<boolean> =>
        Number(await outputOf(api, id, UNTIL_COUNTED)) > counted;
      await waitFor(`it to count on (${point})`, goesOn);
      await assertNothingElse(stack, api);
    }
    t.log({ failures });
    await removeSandbox(api, id);
  },
);

test.serial('fork: there is a whole copy or none, and the source goes on', async (t) => {
  const { api, stack, points } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await outputOf(api, id, 'seq 100000 > /root/kept && sha256sum /root/kept > /root/sum && sync');
  await outputOf(api, id, COUNTER);
  await outputOf(api, id, UNTIL_COUNTED);
  await points.takeReached();
  const first = await forkSandbox(api, id);
  const reached = samplePoints(await points.takeReached());
  await removeSandbox(api, first.sandbox_id);
  t.log({ seed: pointsSeed, reached });
  for (const point of reached) {
    const name = `fork-${Math.random().toString(36).slice(2)}`;
    await crashAt(t.context, point, () => api.call('POST', `${sandboxPath(id)}/fork`, { name }));
    const counted = Number(await outputOf(api, id, UNTIL_COUNTED));
    await waitFor(`the source to go on (${point})`, async () => {
      return Number(await outputOf(api, id, UNTIL_COUNTED)) > counted;
    });
    const find = async (): Promise<ApiSandbox | undefined> => {
      const all = await api.data<{ sandboxes: ApiSandbox[] }>('GET', '/api/sandboxes');
      return all.sandboxes.find((sandbox) => sandbox.name === name);
    };
    // One whose creator was told that there is none goes away.
    await waitFor(
      `the copy to settle (${point})`,
      async () => {
        const found = await find();
        return found === undefined || !['pending', 'stopping'].includes(found.status);
      },
      SETTLED_MS,
    );
    const child = await find();
    if (child !== undefined) {
      t.true(['running', 'failed'].includes(child.status), `${point}: ${JSON.stringify(child)}`);
      if (child.status === 'failed') {
        t.is(child.exit_reason, 'resume_failed', point);
        await bring(api, child.sandbox_id, 'start', 'running');
      }
      await outputOf(api, child.sandbox_id, 'sha256sum -c /root/sum').catch(() => undefined);
      await waitFor(`the copy to be gone (${point})`, async () => {
        await commandSandbox(api, child.sandbox_id, 'stop');
        const { status } = await api.call('DELETE', sandboxPath(child.sandbox_id));
        return [204, 404].includes(status);
      });
    }
    t.is((await getSandbox(api, id)).status, 'running', point);
    await outputOf(api, id, 'sha256sum -c /root/sum');
    await assertNothingElse(stack, api);
  }
  await removeSandbox(api, id);
});
