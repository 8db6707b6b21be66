/* Disks mounted in sandboxes of two hosts: where sandboxes come to be, and what disks do then. */
import type { ApiClient } from '../helpers/api.ts';
import { createDisk } from '../helpers/disks.ts';
import { holdersOf } from '../helpers/host.ts';
import { ObjectClient } from '../helpers/objects.ts';
import {
  containerSettings,
  createSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
} from '../helpers/sandboxes.ts';
import type { StackNode } from '../helpers/stack.ts';
import { stackTest } from '../helpers/stack-test.ts';

const { serial: test } = stackTest(containerSettings(), async ({ stack }) => {
  const other = await stack.addAgent();
  await other.start();
  return {};
});

/** A disk with a file of its own name, handled by this host and idle. */
async function diskOn(api: ApiClient, { environment }: StackNode, name: string): Promise<string> {
  const { id } = await createDisk(api);
  await new ObjectClient(environment['AGENT_PUBLIC_URL'] ?? '', api.key).put(id, 'name', name);
  return id;
}

const mountsOf = (disks: Readonly<Record<string, string>>): { disk_id: string; path: string }[] =>
  Object.entries(disks).map(([name, disk_id]) => ({ disk_id, path: `/data/${name}` }));

const command = 'cat */name';

test('a sandbox comes to the host of most of its disks, and the others move there', async (t) => {
  const { api, stack } = t.context;
  const [first, second] = stack.agents;
  if (first === undefined || second === undefined) return t.fail('two hosts are needed');
  for (const [most, least] of [
    [second, first],
    [first, second],
  ] as const) {
    const disks = {
      a: await diskOn(api, least, 'one'),
      b: await diskOn(api, most, 'two'),
      c: await diskOn(api, most, 'three'),
    };
    t.deepEqual(await holdersOf(stack, disks.a), [least.daemon.name]);
    const box = await createSandbox(api, { mounts: mountsOf(disks) });
    for (const disk of Object.values(disks)) {
      t.deepEqual(await holdersOf(stack, disk), [most.daemon.name]);
    }
    t.is(await outputOf(api, box.sandbox_id, 'cat /data/*/name'), 'onetwothree');
    const ran = await api.data<{ stdout: string }>('POST', '/api/exec', { disks, command });
    t.is(ran.stdout, 'onetwothree', 'a command comes to the held disks');
    await removeSandbox(api, box.sandbox_id);
  }
});

test('a running sandbox holds its disks against moving', async (t) => {
  const { api, stack } = t.context;
  const [first, second] = stack.agents;
  if (first === undefined || second === undefined) return t.fail('two hosts are needed');
  const disks = { a: await diskOn(api, first, 'one'), b: await diskOn(api, second, 'two') };
  const one = await createSandbox(api, { mounts: mountsOf({ a: disks.a }) });
  const two = await createSandbox(api, { mounts: mountsOf({ b: disks.b }) });
  const ofBoth = { mem_size_mib: 256, mounts: mountsOf(disks) };
  for (const [path, body] of [
    ['/api/exec', { disks, command }],
    ['/api/sandboxes', ofBoth],
  ] as const) {
    const refused = await api.call<{ code: string }>('POST', path, body);
    t.deepEqual([refused.status, refused.body.code], [409, 'disk_in_use'], path);
  }
  t.deepEqual(await holdersOf(stack, disks.a), [first.daemon.name]);
  t.deepEqual(await holdersOf(stack, disks.b), [second.daemon.name]);
  t.is((await getSandbox(api, one.sandbox_id)).status, 'running');
  t.is(await outputOf(api, two.sandbox_id, 'cat /data/b/name'), 'two', 'and goes on');

  await removeSandbox(api, one.sandbox_id);
  const box = await createSandbox(api, { mounts: mountsOf(disks) });
  t.deepEqual(await holdersOf(stack, disks.a), [second.daemon.name]);
  t.is(await outputOf(api, box.sandbox_id, 'cat /data/*/name'), 'onetwo');
  await removeSandbox(api, two.sandbox_id);
  await removeSandbox(api, box.sandbox_id);
});
