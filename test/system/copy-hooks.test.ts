/*
 * Hooks and generations of copies that continue from memory: real virtual machines, one stack. The
 * examples of the guide run as they stand there.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ApiClient } from '../helpers/api.ts';
import {
  type ApiSandbox,
  bring,
  createSandbox,
  forkSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
  runsMachines,
  sandboxPath,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

interface HookedSandbox extends ApiSandbox {
  readonly copy_hook?: string;
  readonly copy_hook_result?: {
    readonly status: string;
    readonly exit_code?: number;
    readonly message?: string;
  };
}
interface ApiSnapshot {
  readonly snapshot_id: string;
  readonly status: string;
  readonly copy_hook?: string;
}

const stacked = stackTest({ ...sandboxSettings(), SANDBOX_PREWARMED: '1' });
const test = runsMachines ? stacked.serial : stacked.serial.skip;
const GENERATION = 'cat /run/berth/generation';

const guide = readFileSync(join(import.meta.dirname, '../../docs/snapshots.md'), 'utf8');

/** The blocks of code below a heading of the guide. */
const examples = (heading: string): string[] => {
  const [, section = ''] = guide.split(`### ${heading}\n`);
  const [own = ''] = section.split(/^#/mu);
  return [...own.matchAll(/^```\w+\n([\s\S]*?)^```$/gmu)].map(([, block = '']) => block.trimEnd());
};

async function snapshotOf(
  api: ApiClient,
  id: string,
  body: Readonly<Record<string, unknown>>,
): Promise<ApiSnapshot> {
  const path = `${sandboxPath(id)}/snapshots?wait=true`;
  const { snapshot_id: made } = await api.data<ApiSnapshot>('POST', path, body);
  return waitFor('the snapshot', async () => {
    const snapshot = await api.data<ApiSnapshot>('GET', `/api/snapshots/${made}`);
    return snapshot.status === 'ready' && snapshot;
  });
}

async function createFrom(
  api: ApiClient,
  snapshot: string,
  body: Readonly<Record<string, unknown>> = {},
): Promise<HookedSandbox> {
  const path = '/api/sandboxes?wait=true';
  const { sandbox_id: id } = await api.data<ApiSandbox>('POST', path, { snapshot, ...body });
  return settledSandbox(api, id);
}

const removeSnapshot = (api: ApiClient, id: string) => api.call('DELETE', `/api/snapshots/${id}`);

test('a hook runs once in each copy of memory, whose record tells how it ended', async (t) => {
  const { api } = t.context;
  const hook = 'cat /run/berth/generation >> /run/hooked';
  const source: HookedSandbox = await createSandbox(api, { copy_hook: hook });
  const { sandbox_id: id } = source;
  t.like(source, { copy_hook: hook, copy_hook_result: undefined });
  const generations = [await outputOf(api, id, GENERATION)];
  const copies: HookedSandbox[] = [await forkSandbox(api, id), await forkSandbox(api, id)];
  for (const copy of copies) {
    t.like(copy, { copy_hook: hook, copy_hook_result: { status: 'completed', exit_code: 0 } });
    const own = await outputOf(api, copy.sandbox_id, GENERATION);
    t.false(generations.includes(own));
    generations.push(own);
    t.is(await outputOf(api, copy.sandbox_id, 'cat /run/hooked'), own);
  }
  t.is(await outputOf(api, id, `${GENERATION}; cat /run/hooked || true`), generations[0] ?? '');
  // A pause is no copy; a boot continues from no memory.
  const child = copies[0]?.sandbox_id ?? '';
  await bring(api, child, 'pause', 'paused');
  await bring(api, child, 'resume', 'running');
  t.is(await outputOf(api, child, 'cat /run/hooked'), generations[1] ?? '');
  t.like(await getSandbox(api, child), { copy_hook_result: { status: 'completed' } });
  await bring(api, child, 'stop', 'stopped');
  t.is(
    ((await bring(api, child, 'start', 'running')) as HookedSandbox).copy_hook_result,
    undefined,
  );
  t.false(generations.includes(await outputOf(api, child, GENERATION)));
  for (const copy of copies) await removeSandbox(api, copy.sandbox_id);
  await removeSandbox(api, id);
});

test('forks, snapshots and starts replace the hook, and an empty one removes it', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await api.call('POST', `${sandboxPath(id)}/start`, { copy_hook: 'touch /run/by-start' });
  t.like(await getSandbox(api, id), { copy_hook: 'touch /run/by-start' });
  const there = (sandboxId: string): Promise<string> =>
    outputOf(api, sandboxId, 'ls /run | grep by- || true');
  const made: string[] = [];
  const look = async ({ sandbox_id: copy }: HookedSandbox): Promise<string> => {
    made.push(copy);
    return there(copy);
  };
  t.is(await look(await forkSandbox(api, id)), 'by-start\n');
  t.is(await look(await forkSandbox(api, id, { copy_hook: 'touch /run/by-fork' })), 'by-fork\n');
  t.is(await look(await forkSandbox(api, id, { copy_hook: '' })), '');
  const body = { name: 'hooked', copy_hook: 'touch /run/by-snapshot' };
  const snapshot = await snapshotOf(api, id, body);
  t.is(snapshot.copy_hook, body.copy_hook);
  t.is(await look(await createFrom(api, 'hooked')), 'by-snapshot\n');
  // Until a machine is prewarmed from the snapshot, which the sandbox then takes.
  t.is(await look(await createFrom(api, 'hooked')), 'by-snapshot\n');
  t.is(
    await look(await createFrom(api, 'hooked', { copy_hook: 'touch /run/by-call' })),
    'by-call\n',
  );
  const none = await createFrom(api, 'hooked', { copy_hook: '' });
  t.is(none.copy_hook_result, undefined);
  t.is(await look(none), '');
  for (const copy of made) await removeSandbox(api, copy);
  await removeSnapshot(api, snapshot.snapshot_id);
  await removeSandbox(api, id);
});

test('a copy continues whose hook fails or takes too long, and its record says so', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await outputOf(
    api,
    id,
    'nohup sh -c "while :; do date > /run/now; sleep 0.1; done" > /dev/null 2>&1 &',
  );
  const cases = [
    ['exit 7', { status: 'failed', exit_code: 7 }],
    ['kill -KILL $$', { status: 'failed', message: 'signal 9 ended it' }],
    [
      'setsid sleep 4714 & sleep 4714',
      { status: 'timed_out', message: 'it was killed after 10 s' },
    ],
  ] as const;
  for (const [hook, result] of cases) {
    const copy: HookedSandbox = await forkSandbox(api, id, { copy_hook: hook });
    t.like(copy.copy_hook_result, result);
    const { sandbox_id: child } = copy;
    await outputOf(api, child, 'rm /run/now; until test -s /run/now; do sleep 0.1; done');
    t.is(await outputOf(api, child, 'pgrep -fc "sleep 471[4]" || true'), '0\n');
    await removeSandbox(api, child);
  }
  const long = 'x'.repeat(8193);
  for (const hook of [long, 'a\0b']) {
    const { status, body } = await api.call('POST', `${sandboxPath(id)}/fork`, {
      copy_hook: hook,
    });
    t.deepEqual([status, body.code], [400, 'bad_request']);
  }
  await removeSandbox(api, id);
});

test('an agent that dies while a hook runs leaves no frozen machine', async (t) => {
  const { api, stack } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  await outputOf(
    api,
    id,
    'nohup sh -c "while :; do date > /run/now; sleep 0.1; done" > /dev/null 2>&1 &',
  );
  for (const signal of ['SIGKILL', 'SIGTERM'] as const) {
    const { sandbox_id: child } = await api.data<ApiSandbox>('POST', `${sandboxPath(id)}/fork`, {
      copy_hook: 'sleep 9; touch /run/late',
    });
    await waitFor('its hook', async () => {
      const { copy_hook_result: result } = (await getSandbox(api, child)) as HookedSandbox;
      return result?.status === 'running';
    });
    await stack.agent.stop(signal);
    await stack.startAgent();
    const copy: HookedSandbox = await settledSandbox(api, child);
    t.like(copy, { status: 'running', copy_hook_result: { status: 'interrupted' } });
    await outputOf(api, child, 'rm /run/now; until test -s /run/now; do sleep 0.1; done');
    t.is(await outputOf(api, child, 'pgrep -fc "sleep [9]" || true; ls /run/late || true'), '0\n');
    await removeSandbox(api, child);
  }
  await removeSandbox(api, id);
});

test('a copy whose hook runs can be stopped, and starts again', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const path = `${sandboxPath(id)}/fork`;
  const body = { copy_hook: 'sleep 9' };
  const { sandbox_id: child } = await api.data<ApiSandbox>('POST', path, body);
  await waitFor('its hook', async () => {
    const { copy_hook_result: result } = (await getSandbox(api, child)) as HookedSandbox;
    return result?.status === 'running';
  });
  const stopped: HookedSandbox = await bring(api, child, 'stop', 'stopped');
  t.like(stopped, { exit_reason: 'stopped', copy_hook_result: { status: 'interrupted' } });
  await bring(api, child, 'start', 'running');
  t.is(await outputOf(api, child, 'echo well'), 'well\n');
  await removeSandbox(api, child);
  await removeSandbox(api, id);
});

test('a machine that was prewarmed from memory runs the hook when a sandbox takes it', async (t) => {
  const { api, stack } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const hook = 'cat /run/berth/generation >> /run/hooked';
  const snapshot = await snapshotOf(api, id, { name: 'ahead', copy_hook: hook });
  const made: string[] = [];
  await waitFor('a sandbox that takes a prewarmed machine', async () => {
    const { sandbox_id: copy, copy_hook_result: result } = await createFrom(api, 'ahead');
    made.push(copy);
    t.like(result, { status: 'completed' });
    t.is(await outputOf(api, copy, 'cat /run/hooked'), await outputOf(api, copy, GENERATION));
    const lines = (await stack.agent.readLog()).split('\n');
    return lines.some((line) => line.includes(copy) && line.includes('"origin":"prewarmed"'));
  });
  for (const copy of made) await removeSandbox(api, copy);
  await removeSnapshot(api, snapshot.snapshot_id);
  await removeSandbox(api, id);
});

/** Lines that copies of a sandbox have drawn, each beyond those that it had when it was copied. */
async function drawnBy(api: ApiClient, ids: readonly string[]): Promise<string[][]> {
  const drawn: string[][] = [];
  for (const id of ids) {
    const lines = await outputOf(api, id, 'sleep 1; cat /root/drawn');
    drawn.push(lines.trim().split('\n'));
  }
  return drawn;
}

const [signalled = '', hook = '', watching = ''] = examples('Python');
for (const [title, program, copyHook] of [
  ['a hook', signalled, hook],
  ['the generation', watching, ''],
] as const) {
  test(`the guide's Python worker draws other numbers in each copy by ${title}`, async (t) => {
    const { api } = t.context;
    const { sandbox_id: id } = await createSandbox(api, { copy_hook: copyHook });
    const text = Buffer.from(program).toString('base64');
    await outputOf(api, id, `echo ${text} | base64 -d > /root/worker.py`);
    await outputOf(api, id, 'nohup python3 /root/worker.py > /dev/null 2>&1 &');
    await outputOf(api, id, 'until test -s /root/drawn; do sleep 0.1; done');
    const snapshot = await snapshotOf(api, id, { name: 'worker' });
    const copies = [await createFrom(api, 'worker'), await createFrom(api, 'worker')];
    const [one = [], two = []] = await drawnBy(
      api,
      copies.map(({ sandbox_id: copy }) => copy),
    );
    const shared = one.filter((line) => two.includes(line));
    // Only the lines from before the copies.
    t.deepEqual(shared, one.slice(0, shared.length));
    t.true(one.length > shared.length && two.length > shared.length);
    for (const column of [0, 1]) {
      const later = (lines: string[]) =>
        lines.slice(shared.length).map((line) => line.split(' ')[column]);
      t.false(later(one).some((number) => later(two).includes(number)));
    }
    for (const { sandbox_id: copy } of copies) await removeSandbox(api, copy);
    await removeSnapshot(api, snapshot.snapshot_id);
    await removeSandbox(api, id);
  });
}

test("the guide's server answers with other UUIDs in each copy", async (t) => {
  const { api } = t.context;
  const [program = '', copyHook = ''] = examples('A server that restarts its workers');
  const { sandbox_id: id } = await createSandbox(api, { copy_hook: copyHook, mem_size_mib: 512 });
  const text = Buffer.from(program).toString('base64');
  await outputOf(api, id, `echo ${text} | base64 -d > /root/server.mjs`);
  await outputOf(api, id, 'nohup node /root/server.mjs > /dev/null 2>&1 &');
  const ask = 'until curl -sf http://127.0.0.1:8080/; do sleep 0.2; done';
  const seen = [await outputOf(api, id, ask)];
  const copies: HookedSandbox[] = [await forkSandbox(api, id), await forkSandbox(api, id)];
  for (const { sandbox_id: copy, copy_hook_result: result } of copies) {
    t.like(result, { status: 'completed' });
    const uuid = await outputOf(api, copy, ask);
    t.false(seen.includes(uuid));
    seen.push(uuid);
  }
  for (const { sandbox_id: copy } of copies) await removeSandbox(api, copy);
  await removeSandbox(api, id);
});
