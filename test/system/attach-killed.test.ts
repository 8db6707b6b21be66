/*
 * The agent is killed while a disk is being attached, at each system call of it, and the next one
 * begins at once: no line that was acknowledged is lost, and the image never has two writers (which
 * every stack watches, LoopWatch).
 */
import { dirname, join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { mountsBelow } from '../../agent/system/mount-table.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, diskFolder, exec } from '../helpers/disks.ts';
import { diskMount, processesMarked } from '../helpers/host.ts';
import { loopsOn } from '../helpers/loops.ts';
import { SlowAttach } from '../helpers/slow-attach.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

const ALL_CALLS = ['flock', 'LOOP_CTL_ADD', 'LOOP_CONFIGURE', 'fsconfig', 'move_mount'] as const;
const CALLS = isFull ? ALL_CALLS : (['LOOP_CTL_ADD', 'LOOP_CONFIGURE', 'move_mount'] as const);
/** Longer than the next agent takes to be ready and to attach the disk. */
const DELAY_MS = 60_000;
const LINES = 8;

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; slow: SlowAttach }>;

test.before(async (t) => {
  const slow = await SlowAttach.build();
  const stack = await Stack.start(slow.environment());
  Object.assign(t.context, { slow, stack, api: await stack.newClient() });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
  await t.context.slow[Symbol.asyncDispose]();
});

/** Appends numbered lines. @returns those that were acknowledged */
async function append(api: ApiClient, diskId: string): Promise<string[]> {
  const acknowledged: string[] = [];
  for (let number = 0; number < LINES; number += 1) {
    const line = `line ${number}`;
    const { exitCode } = await exec(api, diskId, `echo ${line} >> log && sync log`);
    if (exitCode === 0) acknowledged.push(line);
  }
  return acknowledged;
}

for (const call of CALLS) {
  test.serial(`killed at ${call}: nothing acknowledged is lost`, async (t) => {
    const { stack, api, slow } = t.context;
    const { id } = await createDisk(api);
    const image = join(diskFolder(stack, id), 'image.ext4');
    await slow.arm(call, DELAY_MS);
    const cutOff = api.call('POST', `/api/disks/${id}/exec`, { command: 'echo cut off' });
    const helper = await slow.reached();
    await slow.disarm();
    await stack.agent.stop('SIGKILL');
    await cutOff;
    await stack.startAgent();
    const left = (await processesMarked(image)).filter((line) => line.startsWith(`${helper} `));
    t.deepEqual(left, [], 'the next agent is ready, and a helper of the former one still runs');
    const acknowledged = await append(api, id);
    t.is(acknowledged.length, LINES);
    // Drops the page cache: a file system that a second writer destroyed would show its damage now.
    await stack.agent.stop('SIGKILL');
    await waitFor('the guard', async () => loopsOn(image).length === 0);
    await stack.startAgent();
    t.deepEqual((await exec(api, id, 'cat log')).stdout.trimEnd().split('\n'), acknowledged);
  });
}

// The kernel kills like this when memory is short; the agent lives on.
for (const call of ['LOOP_CONFIGURE', 'mounted'] as const) {
  test.serial(
    `only the helper is killed, at ${call}: 503, and the next command runs`,
    async (t) => {
      const { stack, api, slow } = t.context;
      const { id } = await createDisk(api);
      const path = `/api/disks/${id}/exec`;
      await slow.arm(call, DELAY_MS);
      const refused = api.call('POST', path, { command: 'touch ran' });
      const helper = await slow.reached();
      await slow.disarm();
      process.kill(helper, 'SIGKILL');
      const { status, body } = await refused;
      t.deepEqual([status, body.code], [503, 'no_capacity']);
      t.is((await exec(api, id, 'ls; echo kept > log')).stdout, '');
      t.is(loopsOn(join(diskFolder(stack, id), 'image.ext4')).length, 1);
    },
  );
}

test.serial('a detachment that the kernel ends is made again', async (t) => {
  const { stack, api, slow } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo gone > log');
  const mount = diskMount(stack, id);
  const isMounted = async (): Promise<boolean> =>
    (await mountsBelow(dirname(mount))).includes(mount);
  t.true(await isMounted());
  await slow.arm('umount2', DELAY_MS);
  const deleted = api.call('DELETE', `/api/disks/${id}`);
  const helper = await slow.reached();
  await slow.disarm();
  process.kill(helper, 'SIGKILL');
  t.is((await deleted).status, 200);
  t.false(await isMounted());
});

test.serial('the next agent finishes a detachment that was cut off', async (t) => {
  const { stack, api, slow } = t.context;
  const { id } = await createDisk(api);
  const image = join(diskFolder(stack, id), 'image.ext4');
  await exec(api, id, 'echo kept > log');
  await slow.arm('umount2', 60_000);
  const stopped = stack.agent.stop('SIGTERM');
  await slow.reached();
  await slow.disarm();
  process.kill(stack.agent.pid, 'SIGKILL');
  await stopped;
  await stack.startAgent();
  t.is((await exec(api, id, 'cat log')).stdout, 'kept\n');
  t.is(loopsOn(image).length, 1);
});
