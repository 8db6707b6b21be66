import { execFileSync } from 'node:child_process';
import { mkdirSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { rm, statfs, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest from 'ava';
import { newSandboxId } from '../../shared/ids.ts';
import type { GrepResult } from '../../shared/schemas/grep.ts';
import { type ApiBody, ApiClient, type ApiReply } from '../helpers/api.ts';
import { createDisk } from '../helpers/disks.ts';
import {
  type ApiSandbox,
  beginExec,
  commandSandbox,
  createSandbox,
  getSandbox,
  machinesOf,
  removeSandbox,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { mountSmall } from '../helpers/small-storage.ts';
import { Stack, type StackNode } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';
import { isFull } from '../helpers/full.ts';

// Serial, because each test brings a host near its limits.
const test = anyTest.serial;
const fullTest = isFull ? test : test.skip;

/** Like `mountSmall`, but a fifth is reserved for root, as on most hosts. */
function mountSmallDisk(path: string, sizeMiB: number): { unmount: () => void } {
  const image = `${path}.img`;
  mkdirSync(path, { recursive: true });
  writeFileSync(image, '');
  truncateSync(image, sizeMiB * MiB);
  execFileSync('mkfs.ext4', ['-q', '-m', '20', image]);
  execFileSync('mount', ['-o', 'loop', image, path]);
  return {
    unmount() {
      execFileSync('umount', [path]);
      rmSync(path, { recursive: true });
      rmSync(image);
    },
  };
}

const urlOf = ({ environment }: StackNode): string => environment['PUBLIC_BASE_URL'] ?? '';

interface ExecData {
  exitCode: number;
  stdout: string;
}

/** A stack on a small storage of its own, with a disk on it. */
async function withSmallStorage(
  name: string,
  work: (on: {
    readonly path: string;
    readonly api: ApiClient;
    readonly id: string;
    readonly exec: (command: string) => Promise<ApiReply<ApiBody>>;
  }) => Promise<void>,
): Promise<void> {
  const path = `/tmp/berth-test-storage-${process.pid}-${name}`;
  const storage = mountSmall(path, 400);
  try {
    const stack = await Stack.start({
      STORAGE_DIR: path,
      STORAGE_RESERVE_BYTES: String(100 * MiB),
      DISK_SIZE_BYTES: String(64 * MiB),
    });
    try {
      const api = await stack.newClient();
      const { id } = await createDisk(api);
      const exec = (command: string) => api.call('POST', `/api/disks/${id}/exec`, { command });
      await work({ path, api, id, exec });
    } finally {
      await stack.stop();
    }
  } finally {
    storage.unmount();
  }
}

test('when the storage is nearly full work is refused, and accepted again once there is free space', (t) =>
  withSmallStorage('a', async ({ path, api, exec }) => {
    t.is((await exec('echo kept > file')).status, 200);

    const ballast = join(path, 'ballast');
    await writeFile(ballast, Buffer.alloc(320 * MiB));
    const refused = await waitFor('refusal', async () => {
      const reply = await exec('true');
      return reply.status === 503 && reply;
    });
    t.is(refused.body.code, 'host_full');
    t.truthy(refused.headers.get('retry-after'));
    const create = await api.call('POST', '/api/disks', { name: 'another' });
    t.is(create.status, 503);
    t.is(create.body.code, 'host_full');

    await rm(ballast);
    const kept = await waitFor('room again', async () => {
      const reply = await exec('cat file');
      return reply.status === 200 && (reply.body.data as ExecData);
    });
    t.is(kept.stdout, 'kept\n');
    t.is((await api.call('POST', '/api/disks', { name: 'another' })).status, 201);
  }));

test('when the storage runs full a running command is ended and its disk stays intact', (t) =>
  withSmallStorage('b', async ({ path, api, id, exec }) => {
    t.is((await exec('echo kept > file; sync')).status, 200);
    const running = exec('touch begun; sleep 60');
    await waitFor('the command to begin', async () => {
      const look = await exec('ls');
      return look.status === 200 && (look.body.data as ExecData).stdout.includes('begun');
    });
    const ballast = join(path, 'ballast');
    await writeFile(ballast, Buffer.alloc(385 * MiB)).catch(() => undefined);
    const ended = await running;
    t.is(ended.status, 500);
    t.is(ended.body.code, 'outcome_unknown');
    t.regex(ended.body.error, /full/u);
    const search = { directory: '', pattern: 'kept' };
    const found = await api.call('POST', `/api/disks/${id}/grep`, search);
    t.is(found.status, 200); // A search writes nothing.
    t.is((found.body.data as GrepResult).matches.length, 1);
    await rm(ballast);
    const kept = await waitFor('room again', async () => {
      const reply = await exec('cat file; touch written && ls written');
      return reply.status === 200 && (reply.body.data as ExecData);
    });
    t.is(kept.stdout, 'kept\nwritten\n');
  }));

fullTest(
  'a guest that fills its host waits; the agent goes on from what is kept for root',
  async (t) => {
    const path = `/tmp/berth-test-storage-${process.pid}-s`;
    const storage = mountSmallDisk(path, 500);
    try {
      const stack = await Stack.start({
        ...sandboxSettings(),
        AGENT_DATA_DIR: join(path, 'agent'),
        STORAGE_RESERVE_BYTES: String(100 * MiB),
        DISK_SIZE_BYTES: String(32 * MiB),
      });
      try {
        const api = await stack.newClient();
        const [full, other] = [await createSandbox(api), await createSandbox(api)];
        const [id, otherId] = [full.sandbox_id, other.sandbox_id];
        await beginExec(api, id, 'head -c 600M /dev/zero > /f; sync; echo whole');
        const create = () => api.call('POST', '/api/sandboxes', { mem_size_mib: 256 });
        const refused = await waitFor('refusal', async () => {
          const reply = await create();
          if (reply.status !== 202) return reply;
          await removeSandbox(api, (reply.body.data as ApiSandbox).sandbox_id);
          return undefined;
        });
        t.deepEqual([refused.status, refused.body.code], [503, 'no_capacity']);
        t.truthy(refused.headers.get('retry-after'));
        // The guest has more to write: from now on it stands still, but for a moment now and then.
        const isFullNow = async (): Promise<boolean> => {
          const { bavail, bsize } = await statfs(path);
          return bavail * bsize < 8 * MiB;
        };
        await waitFor('the storage to be full', isFullNow, 180_000);
        // The other guest waits too once it writes, so only the agent's own answers are checked
        // here.
        t.is((await getSandbox(api, otherId)).status, 'running');

        // Now the agent has no free space either: it reports later what it cannot journal now.
        const ballast = join(path, 'ballast');
        await writeFile(ballast, Buffer.alloc(200 * MiB)).catch(() => undefined);
        const { status, body } = await beginExec(api, otherId, 'true');
        t.true(status === 202 || body.code === 'host_full', JSON.stringify(body));
        for (const pid of await machinesOf([otherId])) process.kill(pid, 'SIGKILL');
        await rm(ballast);
        const { status: ended } = await waitFor('its end', async () => {
          const sandbox = await getSandbox(api, otherId);
          return sandbox.status !== 'running' && sandbox;
        });
        t.is(ended, 'failed');

        await commandSandbox(api, id, 'stop');
        t.like(await settledSandbox(api, id), { status: 'stopped', exit_reason: 'stop_forced' });
        await removeSandbox(api, id);
        t.is(await waitFor('room', async () => (await create()).status === 202), true);
        await removeSandbox(api, otherId);
      } finally {
        await stack.stop();
      }
    } finally {
      storage.unmount();
    }
  },
);

test('when the disk of Redis is nearly full new work is refused on every node, the rest goes on', async (t) => {
  const path = `/tmp/berth-test-storage-${process.pid}-d`;
  const small = mountSmall(path, 100);
  try {
    const stack = await Stack.start({ DISK_SIZE_BYTES: String(32 * MiB) });
    // Redis writes elsewhere, but the directory named by the setting is what is watched.
    const watching = await stack.addControl({
      REDIS_DATA_DIR: path,
      REDIS_RESERVE_BYTES: String(40 * MiB),
    });
    await watching.start();
    try {
      const api = await stack.newClient();
      const { id } = await api.data<{ id: string }>('POST', '/api/disks', { name: 'work' });
      const other = await api.data<{ id: string }>('POST', '/api/disks', { name: 'other' });
      const running = api.call('POST', `/api/disks/${id}/exec`, {
        command: 'touch begun; while [ ! -e end ]; do sleep 0.1; done; echo whole',
      });
      const look = () => api.data<ExecData>('POST', `/api/disks/${id}/exec`, { command: 'ls' });
      await waitFor('the command', async () => (await look()).stdout.includes('begun'));
      const ballast = join(path, 'ballast');
      await writeFile(ballast, Buffer.alloc(80 * MiB));
      for (const node of [api, new ApiClient(urlOf(watching), api.key)]) {
        const refused = await waitFor('refusal', async () => {
          const reply = await node.call('POST', `/api/disks/${id}/exec`, { command: 'touch end' });
          return reply.status === 503 && reply;
        });
        t.is(refused.body.code, 'directory_full');
        t.truthy(refused.headers.get('retry-after'));
        t.is((await node.call('POST', '/api/disks', { name: 'another' })).status, 503);
        t.is((await node.call('GET', `/api/disks/${id}`)).status, 200);
        // Connecting to a sandbox writes nothing, so it goes as far as looking for the sandbox.
        const connect = `/api/sandboxes/${newSandboxId()}/connections`;
        t.is((await node.call('POST', connect)).status, 404);
      }
      t.is((await api.call('DELETE', `/api/disks/${other.id}`)).status, 200);
      await rm(ballast);
      await waitFor('room again', async () => {
        const reply = await api.call('POST', `/api/disks/${id}/exec`, { command: 'touch end' });
        return reply.status === 200;
      });
      t.is(((await running).body.data as ExecData).stdout, 'whole\n');
    } finally {
      await stack.stop();
    }
  } finally {
    small.unmount();
  }
});

test('when the disk of Redis is full requests fail clearly, and nothing acknowledged is lost', async (t) => {
  const path = `/tmp/berth-test-storage-${process.pid}-c`;
  const small = mountSmall(path, 100);
  const previous = process.env['TMPDIR'];
  process.env['TMPDIR'] = path; // The stack's own directory, which holds the files of Redis, too.
  try {
    const stack = await Stack.start({
      STORAGE_RESERVE_BYTES: '0',
      DISK_SIZE_BYTES: String(32 * MiB),
    });
    try {
      const api = await stack.newClient();
      const { id } = await api.data<{ id: string }>('POST', '/api/disks', { name: 'work' });
      const { token } = await api.data<{ token: string }>('POST', '/api/tokens', { name: 'kept' });
      const ballast = join(path, 'ballast');
      await writeFile(ballast, Buffer.alloc(100 * MiB)).catch(() => undefined);
      const failed = await waitFor('Redis to run out of space', async () => {
        const reply = await api.call('POST', '/api/tokens', { name: 'filler'.repeat(16) });
        return reply.status !== 201 && reply;
      });
      t.is(failed.status, 503);
      t.is(failed.body.code, 'unavailable');
      await rm(ballast);
      await stack.redis.stop();
      await stack.startRedis();
      await waitFor('recovery', async () => (await api.call('GET', '/api/disks')).status === 200);
      const kept = api.withKey(token);
      t.is((await kept.call('GET', `/api/disks/${id}`)).status, 200);
      await waitFor('an exec', async () => {
        const reply = await kept.call('POST', `/api/disks/${id}/exec`, { command: 'true' });
        return reply.status === 200;
      });
    } finally {
      await stack.stop();
    }
  } finally {
    if (previous === undefined) delete process.env['TMPDIR'];
    else process.env['TMPDIR'] = previous;
    small.unmount();
  }
});

test('a backlog of one account does not keep another account waiting behind it', async (t) => {
  const stack = await Stack.start({ EXEC_SLOTS: '1' });
  try {
    const busy = await stack.newClient();
    const other = await stack.newClient();
    const busyDisk = await busy.data<{ id: string }>('POST', '/api/disks', { name: 'work' });
    const otherDisk = await other.data<{ id: string }>('POST', '/api/disks', { name: 'work' });
    const finished: string[] = [];
    const backlog = Array.from({ length: 12 }, async () => {
      const command = 'touch begun; sleep 0.3';
      await busy.data('POST', `/api/disks/${busyDisk.id}/exec`, { command });
      finished.push('busy');
    });
    await waitFor('the backlog to begin', async () => finished.includes('busy'));
    await other.data('POST', `/api/disks/${otherDisk.id}/exec`, { command: 'true' });
    finished.push('other');
    await Promise.all(backlog);
    t.true(finished.indexOf('other') < 6, finished.join(' '));
  } finally {
    await stack.stop();
  }
});
