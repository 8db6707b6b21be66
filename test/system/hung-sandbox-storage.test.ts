/* Shared storage of sandboxes that hangs refuses sandboxes; disks, which lie elsewhere, go on. */
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { FrozenStorage } from '../helpers/frozen-storage.ts';
import { movingSettings } from '../helpers/moving-hosts.ts';
import { beginExec, createSandbox, execIn } from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  directory: string;
  storage: FrozenStorage;
}

const test = anyTest as TestFn<Context>;
/** More than the agent has threads for calls of the file system. */
const CALLS = 48;

test.before(async (t) => {
  const directory = await mkdtemp(join(tmpdir(), 'berth-test-'));
  const sandboxes = join(directory, 'sandboxes');
  Object.assign(t.context, { directory });
  await mkdir(sandboxes);
  const storage = await FrozenStorage.mount(sandboxes);
  Object.assign(t.context, { storage });
  const stack = await Stack.start(movingSettings(sandboxes));
  Object.assign(t.context, { stack, api: await stack.newClient() });
});

test.after.always(async (t) => {
  const { stack, storage, directory } = t.context;
  storage.thaw();
  await Promise.all(stack.agents.map(({ daemon }) => daemon.stop('SIGPWR')));
  await storage[Symbol.asyncDispose]();
  await stack.stop();
  await rm(directory, { recursive: true, force: true });
});

const readiness = async ({ stack }: Context): Promise<string> => {
  const reply = await fetch(`http://127.0.0.1:${stack.environment['AGENT_ADMIN_PORT']}/readyz`);
  return `${reply.status} ${await reply.text()}`;
};

async function disksWork({ api }: Context, diskId: string): Promise<boolean> {
  const { id } = await createDisk(api);
  const [first, second] = await Promise.all([
    exec(api, diskId, 'echo well'),
    exec(api, id, 'echo well'),
  ]);
  return first.stdout === 'well\n' && second.stdout === 'well\n';
}

test.serial(
  'the storage of sandboxes hangs under load: disks go on, and it recovers',
  async (t) => {
    const { api, storage } = t.context;
    const { id: diskId } = await createDisk(api);
    const { sandbox_id: id } = await createSandbox(api);
    t.is((await execIn(api, id, 'echo before')).stdout, 'before\n');
    storage.freeze();
    const calls = Array.from({ length: CALLS }, () => beginExec(api, id, 'echo during; sync'));
    t.true(await disksWork(t.context, diskId));
    await waitFor('its word', async () =>
      (await readiness(t.context)).startsWith('503 the storage of sandboxes does not answer'),
    );
    t.true(await disksWork(t.context, diskId));
    const refused = await api.call('POST', '/api/sandboxes', {});
    t.is(refused.status, 503);
    t.true(['no_capacity', 'runtime_retryable'].includes(refused.body.code), refused.body.code);
    storage.thaw();
    await waitFor('readiness', async () => (await readiness(t.context)).startsWith('200'));
    for (const { status, body } of await Promise.all(calls)) {
      t.true([201, 202, 429, 503].includes(status), `${status} ${body.error}`);
    }
    await waitFor('the end of its commands', async () => {
      const { body } = await beginExec(api, id, 'echo after', { wait: true });
      return body.data?.stdout === 'after\n';
    });
  },
);
