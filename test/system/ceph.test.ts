/*
 * Disks on CephFS, with Debian's Ceph on this machine: each host has a mount of its own in a mount
 * namespace of its own. Only with BERTH_TEST_FULL=1, since Ceph is no package that Berth needs.
 */
import assert from 'node:assert';
import { promisify } from 'node:util';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { toError } from '../../shared/errors.ts';
import type { ApiBody, ApiClient, ApiReply } from '../helpers/api.ts';
import {
  type CephHost,
  type CephStack,
  hasMounted,
  startCephStack,
} from '../helpers/ceph-hosts.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { isFull } from '../helpers/full.ts';
import { loopFiles } from '../helpers/loops.ts';
import { containerSettings, createSandbox, execIn } from '../helpers/sandboxes.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  ceph: CephStack;
  api: ApiClient;
}

const test = anyTest as TestFn<Context>;
const serial = isFull ? test.serial : test.serial.skip;

/** A lease lapses within 20 s. */
const TAKEN_OVER_WITHIN_MS = 90_000;
const REFUSED_WITHIN_MS = 15_000;

test.before(async (t) => {
  if (!isFull) return;
  t.context.ceph = await startCephStack(containerSettings());
  t.context.api = await t.context.ceph.stack.newClient();
});

test.after.always(async (t) => {
  await t.context.ceph?.[Symbol.asyncDispose]();
});

const post = (api: ApiClient, id: string, command: string): Promise<ApiReply<ApiBody>> =>
  api.call('POST', `/api/disks/${id}/exec`, { command });

/** A command on the disk, once it is served again. */
const served = (api: ApiClient, id: string, command: string): Promise<string> =>
  waitFor(
    'the disk',
    async () => {
      const { status, body } = await post(api, id, command);
      return status === 200 && (body.data as { stdout: string }).stdout;
    },
    TAKEN_OVER_WITHIN_MS,
  );

/** The host that has the disk, and the other one. */
function handlerOf({ hosts }: CephStack, diskId: string): { handler: CephHost; other: CephHost } {
  const [first, second] = hosts;
  if (hasMounted(first, diskId)) return { handler: first, other: second };
  assert(hasMounted(second, diskId), 'no host has the disk');
  return { handler: second, other: first };
}

async function readiness({ node: { environment } }: CephHost): Promise<string> {
  try {
    const reply = await fetch(`http://127.0.0.1:${environment['AGENT_ADMIN_PORT']}/readyz`);
    return `${reply.status} ${await reply.text()}`;
  } catch (error) {
    return toError(error).message;
  }
}

const isReady = (host: CephHost): Promise<true> =>
  waitFor('readiness', async () => (await readiness(host)).startsWith('200') && true);

serial('a disk moves to another host when its own stops, and nobody is shut out', async (t) => {
  const { ceph, api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo first > file');
  const { handler, other } = handlerOf(ceph, id);
  t.is(await handler.node.daemon.stop(), 0);
  t.is((await exec(api, id, 'cat file; echo second >> file')).stdout, 'first\n');
  t.true(hasMounted(other, id));
  await handler.node.start();
  t.is(await other.node.daemon.stop(), 0);
  t.is((await exec(api, id, 'cat file')).stdout, 'first\nsecond\n');
  t.true(hasMounted(handler, id));
  await other.node.start();
  t.false(ceph.isShutOut(handler) || ceph.isShutOut(other));
});

serial('an agent dies: its host has given the disk up, so it is not shut out', async (t) => {
  const { ceph, api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo kept > file; sync file');
  const { handler, other } = handlerOf(ceph, id);
  await handler.node.daemon.stop('SIGKILL');
  t.is(await served(api, id, 'cat file'), 'kept\n');
  t.true(hasMounted(other, id));
  t.false(ceph.isShutOut(handler));
  await handler.node.start();
});

serial('a frozen host is shut out before another takes its disk, and writes nothing', async (t) => {
  const { ceph, api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'true');
  const { handler, other } = handlerOf(ceph, id);
  const loop = 'while echo $((n += 1)) >> late && sync late; do sleep 0.1; done; echo ended >&2';
  const cutOff = post(api, id, `echo kept > file; sync file; ${loop}`);
  await waitFor('the command to write', async () => {
    const { status, body } = await post(api, id, 'cat late');
    return status === 200 && (body.data as { stdout: string }).stdout.includes('3\n');
  });
  const frozen = [handler.mount.client.pid, handler.node.daemon.pid];
  for (const pid of frozen) process.kill(pid, 'SIGSTOP');
  try {
    t.is(await served(api, id, 'cat file; tail -n 1 late > last; sync last'), 'kept\n');
    t.true(hasMounted(other, id));
    t.true(ceph.isShutOut(handler));
    await waitFor('the fence to be logged', async () =>
      /"fencedHostId":"[^"]+","durationMs":\d+/u.test(await other.node.daemon.readLog()),
    );
    await exec(api, id, 'echo mine > taken; sync taken');
  } finally {
    for (const pid of frozen) process.kill(pid, 'SIGCONT');
  }
  const reply = await cutOff;
  t.deepEqual([reply.status, reply.body.code], [500, 'outcome_unknown']);
  await waitFor('the former host to let go', async () => !hasMounted(handler, id));
  await waitFor('its loop devices to go', async () =>
    [...loopFiles().values()].every((file) => !file.startsWith(`${handler.mount.directory}/`)),
  );
  const same = 'cat taken; test "$(tail -n 1 late)" = "$(cat last)" && echo same';
  t.is((await exec(api, id, same)).stdout, 'mine\nsame\n');
  await waitFor('its word', async () => (await readiness(handler)).includes('the storage fails'));

  await ceph.remount(handler);
  await isReady(handler);
  t.is(await other.node.daemon.stop(), 0);
  t.is((await exec(api, id, same)).stdout, 'mine\nsame\n');
  t.true(hasMounted(handler, id));
  await other.node.start();
});

serial('while Ceph hangs disks answer 503, sandboxes go on, and all is well after', async (t) => {
  const { ceph, api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo kept > file; sync file');
  const { sandbox_id: sandbox } = await createSandbox(api);
  const daemons = ['mon.a', 'mds.a', 'osd.0', 'osd.1'].map((name) => {
    const daemon = ceph.cephFs.ceph.daemons.get(name);
    assert(daemon !== undefined);
    return daemon;
  });
  for (const { pid } of daemons) process.kill(pid, 'SIGSTOP');
  try {
    for (const host of ceph.hosts) {
      await waitFor('its word', async () =>
        (await readiness(host)).includes('the storage does not answer'),
      );
    }
    const signal = AbortSignal.timeout(REFUSED_WITHIN_MS);
    const refused = await api.call('POST', '/api/disks', { name: 'hung' }, {}, signal);
    t.is(refused.status, 503);
    t.is((await execIn(api, sandbox, 'echo well')).stdout, 'well\n');
  } finally {
    for (const { pid } of daemons) process.kill(pid, 'SIGCONT');
  }
  t.is(await served(api, id, 'cat file'), 'kept\n');
  await api.call('DELETE', `/api/sandboxes/${sandbox}`);
});

serial('disks are undamaged after all of this', async (t) => {
  const { ceph, api } = t.context;
  const [first, second] = ceph.hosts;
  const listed = await api.data<{ id: string; status: string }[]>('GET', '/api/disks');
  const disks = listed.filter(({ status }) => status === 'available');
  t.true(disks.length >= 4);
  for (const { node } of ceph.hosts) t.is(await node.daemon.stop(), 0);
  for (const { id } of disks) {
    const image = join(first.mount.directory, 'disks', id, 'image.ext4');
    const check = [...first.mount.within, 'e2fsck', '-fn', image];
    await t.notThrowsAsync(promisify(execFile)('env', check));
  }
  await first.node.start();
  await second.node.start();
});
