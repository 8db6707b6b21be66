/*
 * A host whose lease ended without a release is shut out of the storage before another one takes
 * its disk. Here a process of the test has the image locked, as that host's loop device would;
 * ceph.test.ts does the same with hosts that are frozen.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { chmod, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import type { ApiBody, ApiClient, ApiReply } from '../helpers/api.ts';
import { createDisk, diskFolder, exec } from '../helpers/disks.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  /** Where the fence notes whom it was asked to shut out. */
  directory: string;
}

const test = anyTest as TestFn<Context>;

const FORMER = 'host-aaaaaaaaaaaa';

/** Shuts the host out by ending the process that stands for it; with a file `broken` it fails. */
const fenceIn = (directory: string): string => `#!/bin/sh
echo "$1" >> ${directory}/shut-out
test ! -e ${directory}/broken || exit 1
kill -9 $(cat ${directory}/locker)
`;

test.before(async (t) => {
  const directory = await mkdtemp(join(tmpdir(), 'berth-fence-'));
  const fence = join(directory, 'fence');
  await writeFile(fence, fenceIn(directory));
  await chmod(fence, 0o755);
  const stack = await Stack.start({ STORAGE_FENCE_COMMAND: fence });
  Object.assign(t.context, { directory, stack, api: await stack.newClient() });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
  await rm(t.context.directory, { recursive: true });
});

const post = (api: ApiClient, id: string): Promise<ApiReply<ApiBody>> =>
  api.call('POST', `/api/disks/${id}/exec`, { command: 'true' });

const shutOut = ({ directory }: Context): Promise<string> =>
  readFile(join(directory, 'shut-out'), 'utf8').catch(() => '');

/** A disk whose last lease, another host's, has lapsed. */
async function abandonedDisk({ stack, api }: Context): Promise<string> {
  const { id } = await createDisk(api);
  const redis = await stack.redisClient();
  const [key = ''] = await redis.keys(`*:disk:${id}`);
  const ref = { accountId: /\{(.*?)\}/u.exec(key)?.[1] ?? '', diskId: id };
  const { diskLeases } = await stack.openDirectory();
  await diskLeases.acquire(ref, FORMER, 50);
  await waitFor('the lease to lapse', async () => (await redis.exists(`${key}:lease`)) === 0);
  return id;
}

/** Locks the image as the former host's loop device would. */
async function lockImage({ stack, directory }: Context, id: string): Promise<ChildProcess> {
  const image = join(diskFolder(stack, id), 'image.ext4');
  const program = 'flock --exclusive 3; echo $$ > "$2/locker"; exec sleep 1000';
  const locker = spawn('sh', ['-c', `exec 3< "$1"; ${program}`, 'sh', image, directory]);
  await waitFor('the lock', async () => existsSync(join(directory, 'locker')));
  return locker;
}

test.serial('a host that has detached the disk in time is left alone', async (t) => {
  const id = await abandonedDisk(t.context);
  t.is((await post(t.context.api, id)).status, 200);
  t.is(await shutOut(t.context), '');
});

test.serial('a host that has it attached still is shut out first, and only once', async (t) => {
  const { api, stack, directory } = t.context;
  const id = await abandonedDisk(t.context);
  const locker = await lockImage(t.context, id);
  await writeFile(join(directory, 'broken'), '');
  const refused = await post(api, id);
  t.deepEqual([refused.status, refused.body.code], [503, 'unavailable']);
  t.regex(refused.body.error, /could not be fenced/u);
  t.is(await shutOut(t.context), `${FORMER}\n`);
  await rm(join(directory, 'broken'));
  const ended = once(locker, 'exit');
  t.is((await exec(api, id, 'echo taken')).stdout, 'taken\n');
  await ended;
  t.is(await shutOut(t.context), `${FORMER}\n${FORMER}\n`);
  t.is(await stack.agent.stop(), 0);
  await stack.startAgent();
  t.is((await exec(api, id, 'echo again')).stdout, 'again\n');
  t.is(await shutOut(t.context), `${FORMER}\n${FORMER}\n`);
});
