/* When storage hangs, only its own disks are refused, soon, and they recover by themselves. */
import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { DISK_LIMITS } from '../../agent/disks/limits.ts';
import type { Host } from '../../shared/schemas/host.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, diskFolder, exec } from '../helpers/disks.ts';
import { FrozenStorage } from '../helpers/frozen-storage.ts';
import { Stack, type StackNode } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  /** A disk whose storage can be made to hang separately. */
  hungId: string;
  storage: FrozenStorage;
  /** Another disk. */
  wellId: string;
}

const test = anyTest as TestFn<Context>;
/** Well above an immediate refusal and below the 20 s time-out of a host's job. */
const REFUSED_MS = DISK_LIMITS.diskAttachMsMax + 7_000;

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const hungId = (await createDisk(api)).id;
  const wellId = (await createDisk(api)).id;
  const storage = await FrozenStorage.mount(diskFolder(stack, hungId));
  Object.assign(t.context, { api, hungId, storage, wellId });
});

test.afterEach.always((t) => t.context.storage.thaw());

test.after.always(async (t) => {
  await stopAgents(t.context);
  await t.context.storage[Symbol.asyncDispose]();
  await t.context.stack.stop();
});

/** Detaches the disk, because nothing may have it mounted when its storage is removed. */
async function stopAgents({ stack }: Context): Promise<void> {
  await Promise.all(stack.agents.map(({ daemon }) => daemon.stop()));
}

const admin = async ({ environment }: StackNode, path: string): Promise<string> => {
  const reply = await fetch(`http://127.0.0.1:${environment['AGENT_ADMIN_PORT']}/${path}`);
  return `${reply.status} ${await reply.text()}`;
};

const gauge = async (stack: Stack, name: string): Promise<number> => {
  const [agent] = stack.agents;
  const text = agent === undefined ? '' : await admin(agent, 'metrics');
  return Number(new RegExp(`^${name}\\S* (\\d+)$`, 'mu').exec(text)?.[1]);
};

async function refusal({ api, hungId }: Context): Promise<[number, string]> {
  const signal = AbortSignal.timeout(REFUSED_MS);
  const path = `/api/disks/${hungId}/exec`;
  const { status, body } = await api.call('POST', path, { command: 'true' }, {}, signal);
  return [status, body.code ?? ''];
}

/** Asserts that other disks work, attached ones and new ones. */
async function othersWork({ api, wellId }: Context): Promise<boolean> {
  const { id } = await createDisk(api);
  const [first, second] = await Promise.all([
    exec(api, wellId, 'echo well'),
    exec(api, id, 'echo well'),
  ]);
  return first.stdout === 'well\n' && second.stdout === 'well\n';
}

const comesBack = ({ api, hungId }: Context, command: string): Promise<string> =>
  waitFor('the disk', async () => {
    const { status, body } = await api.call('POST', `/api/disks/${hungId}/exec`, { command });
    return status === 200 && (body.data as { stdout: string }).stdout;
  });

test.serial(
  'a disk that cannot be attached answers 503 until its storage answers; others go on',
  async (t) => {
    const { stack, storage } = t.context;
    storage.freeze();
    const first = refusal(t.context);
    t.true(await othersWork(t.context));
    t.deepEqual(await first, [503, 'unavailable']);
    t.is(await gauge(stack, 'berth_disks_set_aside'), 1);
    t.deepEqual(await refusal(t.context), [503, 'unavailable']);
    t.true(await othersWork(t.context));
    const [agent] = stack.agents;
    t.regex(agent === undefined ? '' : await admin(agent, 'readyz'), /^200/u);
    storage.thaw();
    t.is(await comesBack(t.context, 'echo back > file && cat file'), 'back\n');
    t.is(await gauge(stack, 'berth_disks_set_aside'), 0);
  },
);

test.serial(
  'a host whose disks are to go gives the others up when the storage of one hangs',
  async (t) => {
    const { stack, storage, api, wellId } = t.context;
    const operator = await stack.newClient(['operator']);
    const [host] = await operator.data<Host[]>('GET', '/api/hosts');
    const path = `/api/hosts/${host?.id}`;
    const disks = async (): Promise<number> => (await operator.data<Host>('GET', path)).disks;
    await comesBack(t.context, 'echo late > file'); // Its blocks wait to be written.
    await exec(api, wellId, 'echo early > file');
    storage.freeze();
    await operator.data('POST', `${path}/cordon`);
    await waitFor('the disks to go', async () => (await disks()) === 0);
    await waitFor('its word', async () => (await gauge(stack, 'berth_disks_set_aside')) === 1);
    await operator.data('POST', `${path}/uncordon`);
    t.true(await othersWork(t.context));
    t.is((await exec(api, wellId, 'cat file')).stdout, 'early\n');
    t.deepEqual(await refusal(t.context), [503, 'unavailable']);
    storage.thaw();
    t.is(await comesBack(t.context, 'cat file'), 'late\n');
    t.is(await gauge(stack, 'berth_disks_set_aside'), 0);
  },
);

test.serial('a disk in use hangs and the agent dies: the next agent is soon ready', async (t) => {
  const { stack, storage, api, hungId } = t.context;
  await comesBack(t.context, 'echo kept > file && sync file');
  const command = 'while :; do dd if=/dev/zero of=zeros bs=1M count=8 conv=fsync; done';
  const cutOff = api.call('POST', `/api/disks/${hungId}/exec`, { command });
  await waitFor('the command', async () => (await gauge(stack, 'berth_execs_running')) === 1);
  storage.freeze();
  t.true(await othersWork(t.context));
  await stack.agent.stop('SIGKILL');
  t.is((await cutOff).body.code, 'outcome_unknown');
  await stack.startAgent();
  t.true(await othersWork(t.context));
  t.deepEqual(await refusal(t.context), [503, 'unavailable']);
  storage.thaw();
  t.is(await comesBack(t.context, 'cat file'), 'kept\n');
});

test.serial(
  'an agent whose whole storage hangs starts, reports it, and is ready once it answers',
  async (t) => {
    const { stack } = t.context;
    const directory = join(stack.directory, 'other-storage');
    await mkdir(directory);
    await using storage = await FrozenStorage.mount(directory);
    const agent = await stack.addAgent({ STORAGE_DIR: storage.directory, REGION: 'other-test' });
    storage.freeze();
    agent.daemon.start();
    const isSilent = async (): Promise<boolean> =>
      (await admin(agent, 'readyz').catch(() => '')).includes('503 the storage does not answer');
    await waitFor('its word', isSilent);
    storage.thaw();
    await waitFor('readiness', async () => !(await isSilent()));
    storage.freeze();
    await waitFor('its word', isSilent);
    storage.thaw();
    await agent.daemon.stop();
    t.pass();
  },
);

test.serial(
  'an agent that loses its storage is not ready and writes nothing below the mount point',
  async (t) => {
    const { stack } = t.context;
    const directory = join(stack.directory, 'lost-storage');
    await mkdir(directory);
    await using storage = await FrozenStorage.mount(directory);
    const agent = await stack.addAgent({ STORAGE_DIR: directory, REGION: 'lost-test' });
    agent.daemon.start();
    const log = (): Promise<string> => agent.daemon.readLog().catch(() => ''); // Not written yet.
    await waitFor('its start', async () => (await log()).includes('agent:ready'));
    await storage[Symbol.asyncDispose]();
    await waitFor('its word', async () =>
      (await admin(agent, 'readyz')).startsWith('503 the storage fails: there is no'),
    );
    await agent.daemon.stop();
    agent.daemon.start();
    await waitFor('its end', async () => !agent.daemon.isRunning);
    t.regex(await agent.daemon.readLog(), /^agent: STORAGE_DIR .*not mounted\. Mount it/mu);
    t.deepEqual(await readdir(directory), []);
  },
);
