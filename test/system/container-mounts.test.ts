/* Disks mounted in sandboxes that are containers, from the API to the host's mounts and leases. */
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { mountsBelow, mountsOf } from '../../agent/system/mount-table.ts';
import { paths } from '../../agent/system/paths.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createBucketDisk, ownBuckets } from '../helpers/buckets.ts';
import { createDisk, diskFolder, exec, missingDiskId } from '../helpers/disks.ts';
import { runDirOf } from '../helpers/host.ts';
import { loopsOn } from '../helpers/loops.ts';
import { countRows, insertRows, tryLock } from '../helpers/mounts.ts';
import {
  type ApiSandbox,
  beginExec,
  bring,
  containerSettings,
  createSandbox,
  endedExec,
  execIn,
  forkSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
  sandboxPath,
} from '../helpers/sandboxes.ts';
import { ObjectClient } from '../helpers/objects.ts';
import type { Stack } from '../helpers/stack.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { newDiskUser } from '../helpers/tools.ts';
import { waitFor } from '../helpers/wait.ts';

const { serial: test } = stackTest({ ...containerSettings(), ...(await ownBuckets()) });

const runDir = (stack: Stack): string => runDirOf(stack.environment);

/** The disk's lease as Redis has it. */
async function leaseOf(stack: Stack, diskId: string): Promise<string | null> {
  const redis = await stack.redisClient();
  const [key] = await redis.keys(`*:disk:${diskId}:lease`);
  return key === undefined ? null : redis.get(key);
}

const isHeld = async (stack: Stack, diskId: string): Promise<boolean> =>
  (await mountsBelow(runDir(stack))).includes(paths.heldDisk(runDir(stack), diskId));

const listWith = async (api: ApiClient, diskId: string): Promise<string[]> => {
  const path = `/api/sandboxes?filesystem=${diskId}`;
  const { sandboxes } = await api.data<{ sandboxes: ApiSandbox[] }>('GET', path);
  return sandboxes.map(({ sandbox_id: id }) => id);
};

test('sandboxes and commands see one disk, with the same owners', async (t) => {
  const { api, stack } = t.context;
  const { id: disk } = await createDisk(api);
  await exec(api, disk, 'mkdir -p sub/deep && echo from exec > a && chown 1234:5678 a');
  const mounts = [{ disk_id: disk, path: '/data/work' }];
  const [one, two] = await Promise.all([
    createSandbox(api, { mounts }),
    createSandbox(api, { mounts: [{ disk_id: disk, subdirectory: 'sub', read_only: true }] }),
  ]);
  t.like(await getSandbox(api, one.sandbox_id), { mounts });
  t.like(await getSandbox(api, two.sandbox_id), {
    mounts: [{ disk_id: disk, path: '/mnt/service', subdirectory: 'sub', read_only: true }],
  });
  t.deepEqual(await listWith(api, disk), [one.sandbox_id, two.sandbox_id]);
  t.deepEqual(await listWith(api, missingDiskId), []);

  const seen = await outputOf(
    api,
    one.sandbox_id,
    "cat /data/work/a; stat -c '%u:%g' /data/work/a",
  );
  t.is(seen, 'from exec\n1234:5678\n');
  await outputOf(api, one.sandbox_id, 'cd /data/work/sub && echo new > file && chown 7:8 file');
  t.is((await exec(api, disk, "cat sub/file; stat -c '%u:%g' sub/file")).stdout, 'new\n7:8\n');
  t.is(await outputOf(api, two.sandbox_id, 'cat /mnt/service/file'), 'new\n');
  const refused = await execIn(api, two.sandbox_id, 'touch /mnt/service/x');
  t.regex(refused.stderr ?? '', /Read-only file system/u);

  t.true(await isHeld(stack, disk));
  t.regex((await leaseOf(stack, disk)) ?? '', / held$/u);
  const deleted = await api.call('DELETE', `/api/disks/${disk}`);
  t.is(deleted.status, 409);
  t.like(deleted.body, { code: 'disk_in_use' });
  await removeSandbox(api, one.sandbox_id);
  t.is((await api.call('DELETE', `/api/disks/${disk}`)).status, 409, 'the other one runs');
  await removeSandbox(api, two.sandbox_id);
  t.false(await isHeld(stack, disk));
  t.notRegex((await leaseOf(stack, disk)) ?? '', / held$/u);
  t.is((await api.call('DELETE', `/api/disks/${disk}`)).status, 200);
});

test('no disk is mounted in the data directory, which operators of removed hosts empty', async (t) => {
  const { api, stack } = t.context;
  const { id: disk } = await createDisk(api);
  const { sandbox_id: id } = await createSandbox(api, {
    mounts: [{ disk_id: disk, path: '/data' }],
  });
  const command = exec(api, disk, 'touch begun; while [ ! -e go ]; do sleep 0.1; done');
  await waitFor('the command', async () => (await outputOf(api, id, 'ls /data')).includes('begun'));
  const loops = loopsOn(join(diskFolder(stack, disk), 'image.ext4'));
  const targets = (await Promise.all(loops.map((name) => mountsOf(`/dev/${name}`)))).flat();
  t.is(targets.length, 3, 'attached, held, and in the container of the command');
  const { AGENT_DATA_DIR = '' } = stack.environment;
  t.deepEqual(
    targets.filter((target) => target.startsWith(`${AGENT_DATA_DIR}/`)),
    [],
  );
  await outputOf(api, id, 'touch /data/go');
  await command;
  await removeSandbox(api, id);
});

test('locks, SQLite and git work between sandboxes and commands', async (t) => {
  const { api } = t.context;
  const { id: disk } = await createDisk(api);
  const mounts = [{ disk_id: disk, path: '/data' }];
  const [one, two] = await Promise.all([
    createSandbox(api, { mounts }),
    createSandbox(api, { mounts }),
  ]);
  const holders = await Promise.all(
    (['lockf', 'flock'] as const).map(async (kind) => {
      const { body } = await beginExec(api, one.sandbox_id, tryLock(kind, `/data/${kind}`, 5));
      return body.data.exec_id;
    }),
  );
  await sleep(1_000);
  for (const kind of ['lockf', 'flock'] as const) {
    t.is(await outputOf(api, two.sandbox_id, tryLock(kind, `/data/${kind}`)), 'no\n', kind);
    t.is((await exec(api, disk, tryLock(kind, kind))).stdout, 'no\n', `${kind} of a command`);
  }
  for (const holder of holders) {
    t.is((await endedExec(api, one.sandbox_id, holder)).stdout, 'got\n');
  }
  await Promise.all([
    outputOf(api, one.sandbox_id, insertRows('/data/db', 'one', 50)),
    outputOf(api, two.sandbox_id, insertRows('/data/db', 'two', 50)),
  ]);
  t.is(await countRows(api, one.sandbox_id, '/data/db'), 'one 50\ntwo 50\n');
  // They share one kernel, and with it the memory map of a WAL database.
  const wal = `python3 -c "import sqlite3; sqlite3.connect('wal').execute('pragma journal_mode=wal')"`;
  await exec(api, disk, wal);
  await Promise.all([
    outputOf(api, one.sandbox_id, insertRows('/data/wal', 'one', 50)),
    outputOf(api, two.sandbox_id, insertRows('/data/wal', 'two', 50)),
    exec(api, disk, insertRows('wal', 'command', 50)),
  ]);
  t.is(await countRows(api, one.sandbox_id, '/data/wal'), 'command 50\none 50\ntwo 50\n');

  const git = 'git -c user.name=t -c user.email=t@t -C /data/repo';
  await outputOf(api, one.sandbox_id, 'git init -q /data/repo');
  const commit = (writer: string): string =>
    `for n in $(seq 10); do until flock /data/turn sh -c 'echo $0 > /data/repo/$1-$0 &&` +
    ` ${git} add $1-$0 && ${git} commit -qm $1' $n ${writer}; do sleep 0.1; done; done`;
  await Promise.all([
    outputOf(api, one.sandbox_id, commit('one')),
    outputOf(api, two.sandbox_id, commit('two')),
  ]);
  const state = await outputOf(
    api,
    two.sandbox_id,
    `${git} fsck --strict 2>&1 | grep -v notice; ${git} log --oneline | wc -l`,
  );
  t.is(state.trim(), '20');
  await Promise.all([removeSandbox(api, one.sandbox_id), removeSandbox(api, two.sandbox_id)]);
});

test('a mounted running sandbox survives its agent, and no other host gets its disk', async (t) => {
  const { api, stack } = t.context;
  const { id: disk } = await createDisk(api);
  const box = await createSandbox(api, { mounts: [{ disk_id: disk, path: '/data' }] });
  const loop = 'exec 3>>/data/log; n=0; while sleep 0.05; do n=$((n+1)); echo $n >&3; done';
  await beginExec(api, box.sandbox_id, loop);
  await waitFor('the first line', async () => {
    const { exitCode } = await exec(api, disk, 'test -s log');
    return exitCode === 0;
  });
  await stack.agent.stop('SIGKILL');
  const mounted = paths.mount(runDir(stack), disk);
  await waitFor('the guard', async () => !(await mountsBelow(runDir(stack))).includes(mounted));
  t.true(await isHeld(stack, disk), 'the guard leaves the held mount');
  const value = await leaseOf(stack, disk);
  t.regex(value ?? '', / held$/u);
  const redis = await stack.redisClient();
  const [key = ''] = await redis.keys(`*:disk:${disk}:lease`);
  t.is(await redis.pttl(key), -1, 'it does not expire');
  const away = await waitFor('control to miss the host', async () => {
    const reply = await api.call('POST', `/api/disks/${disk}/exec`, { command: 'true' });
    return reply.status === 409 && reply;
  });
  t.like(away.body, { code: 'disk_in_use' });

  await stack.startAgent();
  const count = async (): Promise<number> =>
    Number((await exec(api, disk, 'tail -n 1 log')).stdout);
  const before = await waitFor('a command on the disk', () => count().catch(() => 0));
  await waitFor('the sandbox to write on', async () => (await count()) > before);
  t.is((await exec(api, disk, 'sort -nc log && uniq -d log')).exitCode, 0);
  await removeSandbox(api, box.sandbox_id);
  t.false(await isHeld(stack, disk));
});

test('mounts follow a sandbox through pause, stop and fork, and change when it starts', async (t) => {
  const { api, stack } = t.context;
  const [{ id: first }, { id: second }] = await Promise.all([createDisk(api), createDisk(api)]);
  const box = await createSandbox(api, { mounts: [{ disk_id: first, path: '/data' }] });
  const id = box.sandbox_id;
  await outputOf(api, id, 'echo one > /data/file');
  const other = { mounts: [{ disk_id: second, path: '/data' }] };
  const active = await api.call('POST', `${sandboxPath(id)}/start`, other);
  t.is(active.status, 409);
  t.like(active.body, { code: 'sandbox_mounts_while_active' });
  await bring(api, id, 'pause', 'paused');
  t.true(await isHeld(stack, first), 'its container stands still in memory');
  t.is((await api.call('DELETE', `/api/disks/${first}`)).status, 409);
  await bring(api, id, 'resume', 'running');
  t.is(await outputOf(api, id, 'cat /data/file'), 'one\n');
  await bring(api, id, 'stop', 'stopped');
  await waitFor('the disk to be released', async () => !(await isHeld(stack, first)));
  const child = await forkSandbox(api, id);
  t.is(await outputOf(api, child.sandbox_id, 'cat /data/file'), 'one\n');
  const started = await api.call('POST', `${sandboxPath(id)}/start?wait=true`, other);
  t.is(started.status, 200, JSON.stringify(started.body));
  t.is(await outputOf(api, id, 'ls /data'), '');
  t.true(await isHeld(stack, second));
  await removeSandbox(api, child.sandbox_id);
  t.false(await isHeld(stack, first));
  t.is((await api.call('DELETE', `/api/disks/${first}`)).status, 200);
  await removeSandbox(api, id);
});

test('what cannot be mounted is refused, naming position and disk', async (t) => {
  const { api, stack } = t.context;
  const { id: disk } = await createDisk(api);
  const create = (mounts: readonly object[]): ReturnType<ApiClient['call']> =>
    api.call('POST', '/api/sandboxes', { mounts });
  const mine = { disk_id: disk, path: '/a' };
  const missing = await create([mine, { disk_id: missingDiskId, path: '/b' }]);
  t.is(missing.status, 404);
  t.like(missing.body, { error: `mounts[1]: disk ${missingDiskId} not found` });
  const foreign = await (
    await stack.newClient()
  ).call('POST', '/api/sandboxes', { mounts: [mine] });
  t.is(foreign.status, 404);
  t.is((await create([{ disk_id: disk, path: '/' }])).status, 400);
  const absent = await create([{ ...mine, subdirectory: 'absent' }]);
  t.is(absent.status, 400);
  t.like(absent.body, { error: `mounts[0]: disk ${disk}: absent does not exist on the disk` });
  await exec(api, disk, 'ln -s /etc out');
  t.is((await create([{ ...mine, subdirectory: 'out' }])).status, 400);
  t.false(await isHeld(stack, disk));
});

test('a sandbox has the contents of a bucket, also once the agent was killed', async (t) => {
  const { api, stack } = t.context;
  const objects = new ObjectClient(stack.environment['AGENT_PUBLIC_URL'] ?? '', api.key);
  const bucket = await newDiskUser(stack, api);
  await objects.put(bucket.disk, 'early', 'one\n');
  await objects.put(bucket.disk, 'late', 'two\n');
  const disk = await createBucketDisk(api, bucket);
  const mounts = [{ disk_id: disk.id, path: '/data' }];
  const { sandbox_id: id } = await createSandbox(api, { mounts });
  t.is(await outputOf(api, id, 'cat /data/early; echo three > /data/new'), 'one\n');
  await waitFor('what the sandbox wrote to be in the bucket', async () => {
    return (await objects.get(bucket.disk, 'new')).body.toString() === 'three\n';
  });
  await stack.agent.stop('SIGKILL');
  await stack.startAgent();
  await waitFor('the sandbox to be found', async () => {
    return (await getSandbox(api, id)).status === 'running';
  });
  t.is(await outputOf(api, id, 'cat /data/late'), 'two\n');
  await removeSandbox(api, id);
});
