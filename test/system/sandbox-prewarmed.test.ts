/* Sandboxes that take a prewarmed VM: real virtual machines, one stack. */
import assert from 'node:assert';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import {
  type ApiSandbox,
  bring,
  Failpoints,
  createSandbox,
  findSandbox,
  forkSandbox,
  machinesOf,
  outputOf,
  removeSandbox,
  restartCrashed,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

interface Context {
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly points: Failpoints;
}
const test = anyTest as TestFn<Context>;

const MADE_MS = 60_000;

test.before(async (t) => {
  const points = new Failpoints(join(process.cwd(), `.local/crash-prewarmed-${process.pid}`));
  const settings = { ...sandboxSettings(), ...points.settings, SANDBOX_PREWARMED: '1' };
  const stack = await Stack.start(settings);
  const api = await stack.newClient();
  Object.assign(t.context, { stack, api, points });
  // The first machine of a shape makes the template that later ones start from.
  const { sandbox_id: id } = await createSandbox(api);
  await removeSandbox(api, id);
});

test.after.always(async (t) => {
  await t.context.points.disarm();
  await t.context.stack.stop();
  await t.context.points.takeReached();
});

type LogEvent = Readonly<Record<string, unknown>>;

async function events({ stack }: Context, name: string): Promise<LogEvent[]> {
  const lines = (await stack.agent.readLog()).split('\n');
  const found = lines.filter((line) => line.includes(`"${name}"`) && line.endsWith('}'));
  return found.map((line) => JSON.parse(line) as LogEvent);
}

/** The ids of all machines with anything left on the host. */
const machinesThere = async ({ stack }: Context): Promise<string[]> =>
  readdir(join(stack.environment['AGENT_DATA_DIR'] ?? '', 'sandboxes'));

/** The id of the prewarmed VM. */
async function prewarmed(context: Context): Promise<string> {
  return waitFor(
    'a prewarmed VM',
    async () => {
      const taken = new Set((await events(context, 'sandbox:started')).map(({ vmId }) => vmId));
      const made = await events(context, 'prewarmed:started');
      const there = await machinesThere(context);
      const id = made.findLast(({ vmId }) => !taken.has(vmId) && there.includes(String(vmId)));
      return id === undefined ? undefined : String(id['vmId']);
    },
    MADE_MS,
  );
}

/** Creates a sandbox while a prewarmed VM is ready. */
async function createAhead(
  context: Context,
  settings: Readonly<Record<string, unknown>> = {},
): Promise<{ id: string; name: string; vmId: string }> {
  const vmId = await prewarmed(context);
  const { sandbox_id: id, name } = await createSandbox(context.api, settings);
  const started = await waitFor('the log to tell of the start', async () => {
    const all = await events(context, 'sandbox:started');
    return all.find(({ sandboxId }) => sandboxId === id);
  });
  assert.deepEqual([started['origin'], started['vmId']], ['prewarmed', vmId]);
  return { id, name, vmId };
}

test.serial(
  'a create takes a prewarmed VM of its shape, which gets an identity of its own',
  async (t) => {
    const { api } = t.context;
    const sandboxes = [await createAhead(t.context), await createAhead(t.context)];
    const facts = 'hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id /etc/hostname';
    const seen = new Set<string>();
    for (const { id, name } of sandboxes) {
      const [hostname, machineId, bootId, written] = (await outputOf(api, id, facts)).split('\n');
      t.deepEqual([hostname, written], [name, name]);
      t.is(machineId, id.replaceAll('-', ''));
      seen.add(bootId ?? '').add(await outputOf(api, id, 'head -c 16 /dev/urandom | sha256sum'));
      // The clock is right although the machine waited, and no earlier user has left anything.
      const now = Number(await outputOf(api, id, 'date +%s'));
      t.true(Math.abs(now - Date.now() / 1000) < 10);
      t.is(await outputOf(api, id, 'ls -A /tmp /home'), '/home:\n\n/tmp:\n');
    }
    t.is(seen.size, 4);
    for (const { id } of sandboxes) await removeSandbox(api, id);
  },
);

test.serial('a prewarmed VM mounts the disks of its sandbox', async (t) => {
  const { api } = t.context;
  const { id: disk } = await createDisk(api);
  await exec(api, disk, 'echo shared > file');
  const mounts = [{ disk_id: disk, path: '/data' }];
  const { id } = await createAhead(t.context, { mounts });
  t.is(await outputOf(api, id, 'cat /data/file; echo written > /data/other'), 'shared\n');
  t.is((await exec(api, disk, 'cat other')).stdout, 'written\n');
  await removeSandbox(api, id);
});

test.serial(
  'a sandbox from a prewarmed VM stops, starts, pauses, resumes, forks and is deleted like any other',
  async (t) => {
    const { api } = t.context;
    const { id, vmId } = await createAhead(t.context);
    await outputOf(api, id, 'echo disk > /root/kept; echo memory > /run/kept; sync');
    await bring(api, id, 'pause', 'paused');
    t.deepEqual(await machinesOf([vmId]), []);
    await bring(api, id, 'resume', 'running');
    t.is(await outputOf(api, id, 'cat /root/kept /run/kept'), 'disk\nmemory\n');
    const { sandbox_id: child } = await forkSandbox(api, id);
    t.is(await outputOf(api, child, 'cat /root/kept /run/kept'), 'disk\nmemory\n');
    await bring(api, id, 'stop', 'stopped');
    await bring(api, id, 'start', 'running');
    t.is(await outputOf(api, id, 'cat /root/kept; ls /run/kept 2>/dev/null || true'), 'disk\n');
    await removeSandbox(api, child);
    await removeSandbox(api, id);
    const there = await machinesThere(t.context);
    t.false(there.includes(vmId));
    t.false(there.includes(child));
  },
);

test.serial('prewarming follows the shape that was requested last', async (t) => {
  const { api } = t.context;
  const former = await prewarmed(t.context);
  const { sandbox_id: id } = await createSandbox(api, { mem_size_mib: 300 });
  await waitFor('it to go', async () => !(await machinesThere(t.context)).includes(former));
  t.not(await prewarmed(t.context), former);
  await removeSandbox(api, id);
  // And back again.
  const { sandbox_id: again } = await createSandbox(api);
  await removeSandbox(api, again);
});

test.serial(
  'a create replaces a prewarmed VM that died with a machine from the template',
  async (t) => {
    const { api } = t.context;
    const vmId = await prewarmed(t.context);
    for (const pid of await machinesOf([vmId])) process.kill(pid, 'SIGKILL');
    const { sandbox_id: id } = await createSandbox(api);
    t.is(await outputOf(api, id, 'echo alive'), 'alive\n');
    await removeSandbox(api, id);
    await waitFor('it to go', async () => !(await machinesThere(t.context)).includes(vmId));
  },
);

test.serial(
  'a killed agent leaves no orphaned prewarmed VM, at whatever failpoint of the create',
  async (t) => {
    const { api, stack, points } = t.context;
    await prewarmed(t.context);
    await stack.agent.stop('SIGKILL');
    await stack.startAgent();
    t.deepEqual(await machinesThere(t.context), []);
    const first = await createSandbox(api); // This one starts from the template; the next one takes the prewarmed VM.
    await points.takeReached();
    const { id } = await createAhead(t.context);
    const reached = new Set(await points.takeReached());
    await removeSandbox(api, id);
    await removeSandbox(api, first.sandbox_id);
    const known = ['journal create', 'configure guest', 'journal running'];
    const all = known.flatMap((name) => [`before ${name}`, `after ${name}`]);
    for (const point of all) t.true(reached.has(point), point);
    for (const point of isFull ? all : all.slice(1, 3)) {
      await prewarmed(t.context);
      await points.takeReached();
      await points.arm(point);
      const name = `crash-${Math.random().toString(36).slice(2)}`;
      const creating = api.call('POST', '/api/sandboxes', { name, mem_size_mib: 256 });
      await restartCrashed(stack);
      await points.disarm();
      const { status } = await creating;
      t.true([202, 503, 504].includes(status), `${point}: ${status}`);
      const find = (): Promise<ApiSandbox | undefined> => findSandbox(api, name);
      if (status === 202) {
        const { sandbox_id: created = '' } = (await find()) ?? {};
        t.is((await settledSandbox(api, created)).status, 'running', point);
        t.is(await outputOf(api, created, 'echo alive'), 'alive\n');
        await removeSandbox(api, created);
      } else {
        await waitFor(`nothing to remain (${point})`, async () => (await find()) === undefined);
      }
      await waitFor(
        'nothing to be left',
        async () => (await machinesThere(t.context)).length === 0,
      );
      // A create makes the agent prewarm again for the next round.
      const { sandbox_id: next } = await createSandbox(api);
      await removeSandbox(api, next);
    }
  },
);
