/*
 * Hosts that are lost and taken for lost, without a word of an operator: each has its own way to
 * the storage, which is taken from it with all its locks (HostStorage), as the storage does by
 * itself.
 */
import { mkdirSync, readdirSync } from 'node:fs';
import { chmod, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createDisk, exec } from '../helpers/disks.ts';
import { runDirOf } from '../helpers/host.ts';
import { HostStorage } from '../helpers/host-storage.ts';
import {
  addSecondHost,
  hostOf,
  losePower,
  movingSettings,
  newSandboxDir,
  order,
  processesOf,
  untilAt,
} from '../helpers/moving-hosts.ts';
import {
  bring,
  createSandbox,
  endedExec,
  execIn,
  getSandbox,
  machinesOf,
  outputOf,
  removeSandbox,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const TAKEN_MS_MAX = 120_000;
const directory = newSandboxDir();
const shared = join(directory, 'shared');
mkdirSync(shared, { recursive: true, mode: 0o700 });
const storage = await HostStorage.mount(shared, join(directory, 'first'));
const otherStorage = await HostStorage.mount(shared, join(directory, 'second'));

/**
 * Shuts the first host out of the disks: on this machine, by unmounting all that it has mounted.
 */
const fence = join(directory, 'fence');
const runDirFile = join(directory, 'run-dir');
const mounts = `$(awk -v dir="$(cat ${runDirFile})/" 'index($2, dir) == 1 { print $2 }' /proc/mounts)`;
await writeFile(fence, `#!/bin/sh\nfor mount in ${mounts}; do umount -l "$mount"; done\n`);
await chmod(fence, 0o755);

const { serial: test } = stackTest(
  {
    ...movingSettings(storage.directory),
    SANDBOX_HOST_LOST_MS: '15000',
    STORAGE_FENCE_COMMAND: fence,
  },
  async ({ stack }) => {
    await writeFile(runDirFile, runDirOf(stack.environment));
    return addSecondHost(stack, { SANDBOX_DIR: otherStorage.directory });
  },
);
test.after.always(async () => {
  for (const each of [storage, otherStorage]) await each[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

const machinesAt = (hostId: string): string[] => readdirSync(join(shared, 'hosts', hostId));

test('a host without power: others take over by themselves, with memory, disks and commands', async (t) => {
  t.timeout(300_000);
  const { stack, api, operator, ids, nodes } = t.context;
  const [first, second] = ids;
  const [node] = nodes;
  const { id: disk } = await createDisk(api);
  await order(operator, second, 'cordon');
  const { sandbox_id: running } = await createSandbox(api, {
    mounts: [{ disk_id: disk, path: '/data' }],
  });
  const { sandbox_id: paused } = await createSandbox(api);
  const { sandbox_id: stopped } = await createSandbox(api);
  await order(operator, second, 'uncordon');
  t.is(await hostOf(stack, running), first);
  await outputOf(api, running, 'echo own > /root/file; echo mounted > /data/file; sync');
  const said = await execIn(api, paused, 'echo in memory > /dev/shm/file; echo said');
  await bring(api, paused, 'pause', 'paused');
  await outputOf(api, stopped, 'echo stopped > /root/file; sync');
  await bring(api, stopped, 'stop', 'stopped');

  await losePower(node);
  await storage.shutOut();
  for (const id of [running, paused, stopped])
    await waitFor(
      `${id} to be taken`,
      async () => (await hostOf(stack, id)) === second,
      TAKEN_MS_MAX,
    );
  t.deepEqual(machinesAt(first), []);
  const again = await waitFor(
    'the start',
    async () => {
      const sandbox = await getSandbox(api, running);
      return sandbox.status === 'running' && sandbox;
    },
    TAKEN_MS_MAX,
  );
  t.is(again.exit_reason, 'host_lost');
  t.is(await outputOf(api, running, 'cat /root/file /data/file'), 'own\nmounted\n');
  t.is((await exec(api, disk, 'cat file')).stdout, 'mounted\n', 'its new host has the disk');
  await bring(api, paused, 'resume', 'running');
  t.is(await outputOf(api, paused, 'cat /dev/shm/file'), 'in memory\n');
  t.deepEqual(await endedExec(api, paused, said.exec_id), said);
  await bring(api, stopped, 'start', 'running');
  t.is(await outputOf(api, stopped, 'cat /root/file'), 'stopped\n');

  await storage.remount();
  await node.start();
  t.deepEqual(machinesAt(first), []);
  await Promise.all([running, paused, stopped].map((id) => removeSandbox(api, id)));
});

test('a host that was frozen meanwhile ends its own machines when it goes on, and says why', async (t) => {
  t.timeout(300_000);
  const { stack, api, operator, ids, nodes } = t.context;
  const [first, second] = ids;
  const [node] = nodes;
  await order(operator, second, 'cordon');
  const { sandbox_id: running } = await createSandbox(api);
  const { sandbox_id: paused } = await createSandbox(api);
  await order(operator, second, 'uncordon');
  t.is(await hostOf(stack, running), first);
  await outputOf(api, running, 'echo kept > /root/file; sync');
  await outputOf(api, paused, 'echo in memory > /dev/shm/file');
  await bring(api, paused, 'pause', 'paused');
  const former = await machinesOf([running]);
  t.is(former.length, 1);

  const frozen = await processesOf(node);
  for (const pid of frozen) process.kill(pid, 'SIGSTOP');
  try {
    await storage.shutOut();
    for (const id of [running, paused])
      await waitFor(
        `${id} to be taken`,
        async () => (await hostOf(stack, id)) === second,
        TAKEN_MS_MAX,
      );
    t.is((await settledSandbox(api, running)).status, 'running');
    await bring(api, paused, 'resume', 'running');
  } finally {
    for (const pid of frozen) process.kill(pid, 'SIGCONT');
  }
  await waitFor('the former machine to end', async () =>
    (await machinesOf([running])).every((pid) => !former.includes(pid)),
  );
  const log = await waitFor('its word', async () => {
    const lines = (await node.daemon.readLog()).split('\n');
    return lines.find((line) => line.includes('sandbox:taken') && line.includes(running));
  });
  t.true(log.includes(`"by":"${second}"`), log);
  t.is(await outputOf(api, running, 'cat /root/file'), 'kept\n');
  t.is(await outputOf(api, paused, 'cat /dev/shm/file'), 'in memory\n');
  t.is((await machinesOf([running, paused])).length, 2);

  await storage.remount();
  await waitFor('it to work again', async () => {
    const hosts = await operator.data<{ id: string; sandboxes: number }[]>('GET', '/api/hosts');
    return hosts.find(({ id }) => id === first)?.sandboxes === 0;
  });
  await order(operator, second, 'drain');
  await Promise.all([running, paused].map((id) => untilAt(stack, id, first)));
  await bring(api, paused, 'resume', 'running');
  t.is(await outputOf(api, paused, 'cat /dev/shm/file'), 'in memory\n');
  await order(operator, second, 'uncordon');
  await Promise.all([running, paused].map((id) => removeSandbox(api, id)));
});
