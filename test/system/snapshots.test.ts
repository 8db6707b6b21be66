/*
 * Snapshots of sandboxes and sandboxes created from them: real virtual machines, one stack for all.
 * With BERTH_TEST_RUNTIME=container they are containers, whose snapshots have no memory.
 */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { ApiClient, ApiReply } from '../helpers/api.ts';
import { type CrashContext, crashTest } from '../helpers/crash-test.ts';
import {
  type ApiSandbox,
  bring,
  commandSandbox,
  createSandbox,
  findSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
  restartCrashed,
  sandboxPath,
  runsMachines,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { waitFor } from '../helpers/wait.ts';

interface ApiSnapshot {
  readonly snapshot_id: string;
  readonly name: string;
  readonly status: string;
  readonly has_memory: boolean;
  readonly sandbox_count: number;
  readonly size_bytes: number;
  readonly failure_reason?: string;
}

const test = crashTest(sandboxSettings());

const snapshotPath = (id: string): string => `/api/snapshots/${id}`;

const getSnapshot = (api: ApiClient, id: string): Promise<ApiSnapshot> =>
  api.data<ApiSnapshot>('GET', snapshotPath(id));

/** Makes a snapshot, and waits until it is ready. */
async function snapshotOf(api: ApiClient, id: string, name: string): Promise<ApiSnapshot> {
  const path = `${sandboxPath(id)}/snapshots?wait=true`;
  const { snapshot_id: made } = await api.data<ApiSnapshot>('POST', path, { name });
  return waitFor(`snapshot ${name}`, async () => {
    const snapshot = await getSnapshot(api, made);
    return snapshot.status === 'ready' && snapshot;
  });
}

async function createFrom(
  api: ApiClient,
  snapshot: string,
  body: Readonly<Record<string, unknown>> = {},
): Promise<ApiSandbox> {
  const path = '/api/sandboxes?wait=true';
  const { sandbox_id: id } = await api.data<ApiSandbox>('POST', path, { snapshot, ...body });
  return settledSandbox(api, id);
}

const write = (api: ApiClient, id: string, text: string): Promise<string> =>
  outputOf(api, id, `echo ${text} > /root/disk; echo ${text} > /run/memory; sync`);
const read = (api: ApiClient, id: string): Promise<string> =>
  outputOf(api, id, 'cat /root/disk; cat /run/memory 2>/dev/null || echo none');

test.serial(
  'sandboxes from a snapshot of a running one continue from its memory, apart',
  async (t) => {
    const { api } = t.context;
    const source = await createSandbox(api, { env: { COLOUR: 'blue' }, idle_ttl_seconds: 3600 });
    const id = source.sandbox_id;
    await write(api, id, 'one');
    const snapshot = await snapshotOf(api, id, 'prepared');
    t.like(snapshot, {
      name: 'prepared',
      status: 'ready',
      has_memory: runsMachines,
      sandbox_count: 0,
    });
    t.true(snapshot.size_bytes > 0);
    t.is((await getSandbox(api, id)).running_at, source.running_at);
    await write(api, id, 'two');
    const memory = runsMachines ? 'one' : 'none';
    const first = await createFrom(api, 'prepared', { name: 'first' });
    t.like(first, { status: 'running', idle_ttl_seconds: 3600, snapshot_id: snapshot.snapshot_id });
    t.is(await read(api, first.sandbox_id), `one\n${memory}\n`);
    await write(api, first.sandbox_id, 'three');
    const second = await createFrom(api, snapshot.snapshot_id, { env: { COLOUR: 'red' } });
    t.is(await read(api, second.sandbox_id), `one\n${memory}\n`);
    t.is((await getSnapshot(api, 'prepared')).sandbox_count, 2);
    t.is(await outputOf(api, first.sandbox_id, 'hostname; echo $COLOUR'), 'first\nblue\n');
    t.is(await outputOf(api, second.sandbox_id, 'echo $COLOUR'), 'red\n');
    const ids =
      'cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1' +
      (runsMachines ? '; cat /proc/sys/kernel/random/boot_id' : '');
    const shown = await Promise.all(
      [id, first.sandbox_id, second.sandbox_id].map((each) => outputOf(api, each, ids)),
    );
    const lines = shown.flatMap((text) => text.split('\n').filter((line) => line !== ''));
    t.is(new Set(lines).size, lines.length, 'nothing of an identity is shared');
    t.is(await read(api, id), 'two\ntwo\n');
    await removeSandbox(api, second.sandbox_id);
    t.like(await refusal(api, 'DELETE', snapshotPath('prepared')), {
      code: 'snapshot_in_use',
      child_disk_count: 1,
    });
    await removeSandbox(api, first.sandbox_id);
    await bring(api, id, 'stop', 'stopped');
    t.like(await refusal(api, 'DELETE', sandboxPath(id)), {
      code: 'sandbox_has_forks',
      child_disk_count: 1,
    });
    t.is((await api.call('DELETE', snapshotPath(snapshot.snapshot_id))).status, 204);
    t.is((await api.call('DELETE', snapshotPath(snapshot.snapshot_id))).status, 404);
    t.is((await api.call('DELETE', sandboxPath(id))).status, 204);
  },
);

/** The body of a refusal with 409. */
async function refusal(api: ApiClient, method: string, path: string, body?: object) {
  const reply: ApiReply<{ code: string; error: string }> = await api.call(method, path, body);
  return reply.status === 409 ? reply.body : { status: reply.status };
}

test.serial(
  'snapshots are listed in pages, by whoever has them, and made once for a key',
  async (t) => {
    const { api, stack } = t.context;
    const { sandbox_id: id } = await createSandbox(api);
    await write(api, id, 'one');
    await bring(api, id, 'stop', 'stopped');
    const path = `${sandboxPath(id)}/snapshots`;
    const key = { 'idempotency-key': 'once' };
    const [one, again] = [
      await api.call<{ data: ApiSnapshot }>('POST', path, { name: 'at-rest' }, key),
      await api.call<{ data: ApiSnapshot }>('POST', path, { name: 'at-rest' }, key),
    ];
    t.deepEqual([one.status, again.status], [202, 202]);
    t.is(one.body.data.snapshot_id, again.body.data.snapshot_id);
    t.like(await refusal(api, 'POST', path, { name: 'at-rest' }), {
      code: 'snapshot_name_conflict',
    });
    const snapshot = await snapshotOf(api, id, 'another');
    t.false(snapshot.has_memory);
    interface List {
      readonly data: ApiSnapshot[];
      readonly nextCursor?: string;
    }
    const first = (await api.call<List>('GET', '/api/snapshots?limit=1')).body;
    const cursor = first.nextCursor ?? '';
    const second = (await api.call<List>('GET', `/api/snapshots?limit=1&cursor=${cursor}`)).body;
    t.deepEqual(
      [first, second].flatMap(({ data }) => data.map(({ name }) => name)),
      ['at-rest', 'another'],
    );
    t.is(second.nextCursor, undefined);
    const stranger = await stack.newClient();
    t.is((await stranger.call<List>('GET', '/api/snapshots')).body.data.length, 0);
    for (const [method, at, body] of [
      ['GET', snapshotPath(snapshot.snapshot_id)],
      ['DELETE', snapshotPath(snapshot.snapshot_id)],
      ['POST', '/api/sandboxes', { snapshot: snapshot.snapshot_id }],
      ['POST', path, { name: 'stolen' }],
    ] as const) {
      t.is((await stranger.call(method, at, body)).status, 404, `${method} ${at}`);
    }
    for (const body of [{ base_image: 'debian:12' }, { mem_size_mib: 512 }, { vcpu_count: 2 }]) {
      const wrong = await api.call('POST', '/api/sandboxes', { snapshot: 'another', ...body });
      t.is(wrong.status, 400, JSON.stringify(body));
    }
    const child = await createFrom(api, 'another');
    t.is(await read(api, child.sandbox_id), 'one\nnone\n');
    await removeSandbox(api, child.sandbox_id);
    for (const name of ['at-rest', 'another']) {
      t.is((await api.call('DELETE', snapshotPath(name))).status, 204);
    }
    await removeSandbox(api, id);
  },
);

/** Everything in the agent's directory of sandboxes. */
const kept = async ({ stack }: CrashContext): Promise<string[]> =>
  readdir(join(stack.environment['AGENT_DATA_DIR'] ?? '', 'sandboxes'));

test.serial(
  'a killed agent leaves a whole snapshot or a failed one, and its source runs',
  async (t) => {
    const { api, points, stack } = t.context;
    const { sandbox_id: id } = await createSandbox(api);
    await write(api, id, 'one');
    const path = `${sandboxPath(id)}/snapshots?wait=true`;
    const names: string[] = [];
    const steps = ['after journal snapshot', 'before write chain', 'after journal snapshot ready'];
    for (const [index, point] of steps.entries()) {
      const name = `crash-${index}`;
      names.push(name);
      await points.arm(runsMachines ? point : point.replace('write chain', 'copy disk'));
      const making = api.call<{ data: ApiSnapshot }>('POST', path, { name });
      await waitFor('the crash', async () => !stack.agent.isRunning);
      await points.disarm();
      await restartCrashed(stack);
      await making;
      await waitFor(
        'the host',
        async () => (await commandSandbox(api, id, 'start')).status === 200,
      );
      t.is(await read(api, id), 'one\none\n', point);
      const { data } = (await api.call<{ data: ApiSnapshot[] }>('GET', '/api/snapshots')).body;
      const found = data.find((snapshot) => snapshot.name === name);
      const isWhole = point.endsWith('ready');
      // A snapshot that the caller was told not to exist must have left nothing either.
      if (found !== undefined) t.is(found.status, isWhole ? 'ready' : 'failed', point);
      const files = await kept(t.context);
      const ready = new Set(
        data.filter(({ status }) => status === 'ready').map((each) => each.snapshot_id),
      );
      t.deepEqual(
        files.filter((file) => file !== id && !ready.has(file)),
        [],
        point,
      );
      if (found !== undefined) await api.call('DELETE', snapshotPath(found.snapshot_id));
    }
    await snapshotOf(api, id, 'whole');
    await points.arm('after copy snapshot');
    const creating = api.call('POST', '/api/sandboxes?wait=true', {
      snapshot: 'whole',
      name: 'lost',
    });
    await restartCrashed(stack);
    await points.disarm();
    await creating;
    await waitFor('the host', async () => (await commandSandbox(api, id, 'start')).status === 200);
    t.is(await findSandbox(api, 'lost'), undefined);
    const child = await createFrom(api, 'whole');
    t.is(await read(api, child.sandbox_id), `one\n${runsMachines ? 'one' : 'none'}\n`);
    await removeSandbox(api, child.sandbox_id);
    t.is((await api.call('DELETE', snapshotPath('whole'))).status, 204);
    await removeSandbox(api, id);
    t.deepEqual(await kept(t.context), []);
  },
);
