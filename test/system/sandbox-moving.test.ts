/* Sandboxes between two hosts that share their storage: virtual machines, real agents. */
import { mkdirSync, readdirSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import {
  bring,
  createSandbox,
  endedExec,
  execIn,
  getSandbox,
  machinesOf,
  outputOf,
  removeSandbox,
} from '../helpers/sandboxes.ts';
import {
  addSecondHost,
  hostOf,
  movingSettings,
  newSandboxDir,
  order,
  untilAt,
} from '../helpers/moving-hosts.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const directory = newSandboxDir();
mkdirSync(directory, { mode: 0o700 });

const { serial: test } = stackTest(movingSettings(directory), ({ stack }) => addSecondHost(stack));
test.after.always(() => rm(directory, { recursive: true, force: true }));

const machinesAt = (place: string): string[] => readdirSync(join(directory, place));

test('a drained host’s sandboxes go on at another: memory, files, commands', async (t) => {
  t.timeout(300_000);
  const { stack, api, operator, ids } = t.context;
  const [first, second] = ids;
  await order(operator, second, 'cordon');
  const { sandbox_id: running } = await createSandbox(api);
  const { sandbox_id: stopped } = await createSandbox(api);
  await order(operator, second, 'uncordon');
  t.is(await hostOf(stack, running), first);
  await outputOf(api, stopped, 'echo on disk > /root/file; sync');
  await bring(api, stopped, 'stop', 'stopped');
  await outputOf(api, running, 'echo in memory > /dev/shm/file; echo on disk > /root/file');
  const said = await execIn(api, running, 'echo said; sleep 0.1; echo more >&2');

  await order(operator, first, 'drain');
  await Promise.all([running, stopped].map((id) => untilAt(stack, id, second)));
  t.deepEqual(machinesAt(`hosts/${first}`), []);
  t.deepEqual(machinesAt('released'), []);
  t.is((await getSandbox(api, running)).status, 'paused');
  t.is((await getSandbox(api, stopped)).status, 'stopped');
  t.deepEqual(await endedExec(api, running, said.exec_id), said, 'its record and its output');

  await bring(api, running, 'resume', 'running');
  t.is(await outputOf(api, running, 'cat /dev/shm/file /root/file'), 'in memory\non disk\n');
  await bring(api, stopped, 'start', 'running');
  t.is(await outputOf(api, stopped, 'cat /root/file'), 'on disk\n');

  await order(operator, first, 'uncordon');
  await order(operator, second, 'drain');
  await Promise.all([running, stopped].map((id) => untilAt(stack, id, first)));
  await bring(api, running, 'resume', 'running');
  t.is(await outputOf(api, running, 'cat /dev/shm/file'), 'in memory\n', 'and back');
  await order(operator, second, 'uncordon');
  await Promise.all([running, stopped].map((id) => removeSandbox(api, id)));
  await waitFor('nothing left', async () =>
    [first, second].every((id) => machinesAt(`hosts/${id}`).length === 0),
  );
});

test('a dead host’s sandboxes come back at another once it is fenced; a machine that runs does not', async (t) => {
  t.timeout(300_000);
  const { stack, api, operator, ids, nodes } = t.context;
  const [first, second] = ids;
  await order(operator, first, 'cordon');
  const { sandbox_id: paused } = await createSandbox(api);
  const { sandbox_id: running } = await createSandbox(api);
  await order(operator, first, 'uncordon');
  await outputOf(api, paused, 'echo in memory > /dev/shm/file');
  await bring(api, paused, 'pause', 'paused');
  await outputOf(api, running, 'echo on disk > /root/file; sync');
  const [, node] = nodes;

  await node.daemon.stop('SIGKILL'); // Its machine runs on.
  const early = await operator.call('POST', `/api/hosts/${second}/fence`);
  t.deepEqual([early.status, early.body.code], [409, 'host_in_use']);
  await waitFor(
    'the fence',
    async () => (await operator.call('POST', `/api/hosts/${second}/fence`)).status === 200,
    60_000,
  );
  await untilAt(stack, paused, first);
  t.is(await hostOf(stack, running), second, 'its machine holds the lock');
  await bring(api, paused, 'resume', 'running');
  t.is(await outputOf(api, paused, 'cat /dev/shm/file'), 'in memory\n');

  for (const pid of await machinesOf([running])) process.kill(pid, 'SIGKILL');
  await untilAt(stack, running, first);
  const again = await waitFor('the start', async () => {
    const sandbox = await getSandbox(api, running);
    return sandbox.status === 'running' && sandbox;
  });
  t.is(again.exit_reason, 'host_lost');
  t.is(await outputOf(api, running, 'cat /root/file'), 'on disk\n');

  await node.start();
  t.deepEqual(machinesAt(`hosts/${second}`), [], 'it has forgotten them');
  t.is(await outputOf(api, running, 'cat /root/file'), 'on disk\n', 'and left them alone');
  await Promise.all([paused, running].map((id) => removeSandbox(api, id)));
});
