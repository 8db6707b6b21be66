/*
 * All that a sandbox has comes along when it moves: ports and their tokens, network policy, limits,
 * disks, processes of sessions, an image that the new host lacks, the right to be copied.
 */
import { createHash } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk } from '../helpers/disks.ts';
import { ask, hostOf as nameOfPort, newPortToken } from '../helpers/ingress.ts';
import {
  addSecondHost,
  hostOf,
  movingSettings,
  newSandboxDir,
  order,
  untilAt,
} from '../helpers/moving-hosts.ts';
import { Outside } from '../helpers/outside.ts';
import { freePorts } from '../helpers/ports.ts';
import { imageOf, TestRegistry } from '../helpers/registry.ts';
import {
  bring,
  createSandbox,
  forkSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
  sandboxPath,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { TestConnection } from '../helpers/test-connection.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { tinyLayer } from '../helpers/tiny-image.ts';
import { waitFor } from '../helpers/wait.ts';

const directory = newSandboxDir();
const sandboxDir = join(directory, 'sandboxes');
mkdirSync(sandboxDir, { recursive: true });
const registry = await TestRegistry.start(directory, 'registry');
const outside = await Outside.open({});
await outside.serve('http', 8080);
const [ingress = 0, otherIngress = 0] = await freePorts(2);

const { serial: test } = stackTest(
  {
    ...movingSettings(sandboxDir),
    ...outside.settings,
    IMAGE_REGISTRIES: registry.url,
    INGRESS_PORT: String(ingress),
  },
  ({ stack }) => addSecondHost(stack, { INGRESS_PORT: String(otherIngress) }),
);
test.after.always(async () => {
  await registry.stop();
  await outside[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

/** Whether a command in the sandbox reaches an address. */
const reaches = async (api: ApiClient, id: string, address: string): Promise<boolean> => {
  const request = `curl -s -o /dev/null --max-time 10 http://${address}:8080/ && echo yes || true`;
  return (await outputOf(api, id, request)).trim() === 'yes';
};

/** A sandbox on the first host. */
async function createAtFirst(
  { api, operator, ids }: { api: ApiClient; operator: ApiClient; ids: readonly string[] },
  body: object,
): Promise<string> {
  const [, second = ''] = ids;
  await order(operator, second, 'cordon');
  try {
    return (await createSandbox(api, { ...body })).sandbox_id;
  } finally {
    await order(operator, second, 'uncordon');
  }
}

test('ports, tokens, policy, limits and disks hold at the new host', async (t) => {
  t.timeout(300_000);
  const { stack, api, operator, ids } = t.context;
  const [first, second] = ids;
  await order(operator, second, 'cordon'); // So that the disk is at the first host from the start.
  const { id: disk } = await createDisk(api);
  const network = { egress: { default: 'deny', allow: [outside.address(0)] } };
  const id = await createAtFirst(t.context, {
    ...{ network, ports: [8000], max_ttl_seconds: 5_000, idle_ttl_seconds: 700 },
    mounts: [{ disk_id: disk, path: '/data' }],
  });
  t.is(await hostOf(stack, id), first);
  await outputOf(api, id, 'echo mounted > /data/file; sync');
  for (const port of [8000, 8001])
    await outputOf(api, id, `cd /data; setsid python3 -m http.server ${port} >/dev/null 2>&1 &`);
  const { token } = await newPortToken(api, id, 8001);
  const headers = { 'x-service-token': token };

  await order(operator, first, 'drain');
  await untilAt(stack, id, second);
  await bring(api, id, 'resume', 'running');
  for (const own of [otherIngress, ingress]) {
    await waitFor('the public port', async () => {
      const { status, body } = await ask(own, nameOfPort(8000, id), '/file');
      return status === 200 && body.toString() === 'mounted\n';
    });
    t.is((await ask(own, nameOfPort(8001, id), '/file')).status, 401);
    t.is((await ask(own, nameOfPort(8001, id), '/file', { headers })).status, 200);
  }
  t.true(await reaches(api, id, outside.address(0)));
  t.false(await reaches(api, id, outside.address(1)));
  const moved = await getSandbox(api, id);
  t.like(moved, { max_ttl_seconds: 5_000, idle_ttl_seconds: 700 });
  t.deepEqual(moved.network, network);
  t.not(moved.expires_at, undefined);

  const { sandbox_id: fork } = await forkSandbox(api, id, { name: 'copy' });
  t.is(await hostOf(stack, fork), second);
  const path = `${sandboxPath(id)}/snapshots?wait=true`;
  const { snapshot_id: snapshot } = await api.data<{ snapshot_id: string }>('POST', path, {
    name: 'taken',
  });
  const ready = await api.data<{ status: string }>('GET', `/api/snapshots/${snapshot}`);
  t.is(ready.status, 'ready');
  await order(operator, first, 'uncordon');
  t.is((await api.call('DELETE', `/api/snapshots/${snapshot}`)).status, 204);
  for (const each of [fork, id]) await removeSandbox(api, each);
});

test('a process of a session goes on at the new host, and no byte is lost or comes twice', async (t) => {
  t.timeout(300_000);
  const { stack, api, operator, ids } = t.context;
  const [first, second] = ids;
  const id = await createAtFirst(t.context, {});
  const command =
    'while read -r line; do head -c 200000 /dev/urandom | tee -a /root/all; done; sha256sum </root/all';
  const hash = createHash('sha256');
  const session = await TestConnection.open(api, id, { type: 'start', command, env: {} });
  session.write('next\n');
  await session.until(() => session.cursor >= 100_000);
  const before = session.frames.filter(({ stream }) => stream === 1);
  const { processId, cursor } = session;
  for (const { bytes } of before) hash.update(bytes);
  session.drop();

  await order(operator, first, 'drain');
  await untilAt(stack, id, second);
  await bring(api, id, 'resume', 'running');
  const again = await TestConnection.open(api, id, {
    ...{ type: 'attach', process_id: processId, offset: cursor },
  });
  await again.until(() => again.cursor >= 200_000);
  again.write('next\n');
  await again.until(() => again.cursor >= 400_000);
  again.say({ type: 'input_end' });
  let at = cursor;
  for (const { stream, offset, bytes } of again.frames) {
    t.is(offset, at);
    at += bytes.length;
    if (stream === 1) hash.update(bytes);
  }
  t.is(at, 400_000);
  t.is((await outputOf(api, id, 'sha256sum </root/all')).split(' ')[0], hash.digest('hex'));
  again.drop();
  await order(operator, first, 'uncordon');
  await removeSandbox(api, id);
});

test('a sandbox goes on at a host that lacks its image, and can begin anew there', async (t) => {
  t.timeout(300_000);
  const { stack, api, operator, ids } = t.context;
  const [first, second] = ids;
  const image = imageOf([await tinyLayer(join(directory, 'tree'), 'tiny')], {
    config: { User: 'node', WorkingDir: '/srv/app' },
  });
  const base = await registry.push('team/app', 'one', image);
  const id = await createAtFirst(t.context, { base_image: base });
  await outputOf(api, id, 'echo in memory > /dev/shm/file');
  await order(operator, first, 'drain');
  await untilAt(stack, id, second);
  await registry.stop(); // Nothing but what lies on the storage is needed.
  await bring(api, id, 'resume', 'running');
  t.is(
    (await outputOf(api, id, 'id -un; pwd; cat /marker /dev/shm/file')).trim(),
    'node\n/srv/app\ntinyin memory',
  );
  await bring(api, id, 'stop', 'stopped');
  await api.data('POST', `${sandboxPath(id)}/start`);
  t.is((await settledSandbox(api, id)).status, 'running');
  t.is((await outputOf(api, id, 'id -un; cat /marker')).trim(), 'node\ntiny');
  const { sandbox_id: fork } = await forkSandbox(api, id, { name: 'copy' });
  t.is((await outputOf(api, fork, 'cat /marker')).trim(), 'tiny');
  await order(operator, first, 'uncordon');
  for (const each of [fork, id]) await removeSandbox(api, each);
});
