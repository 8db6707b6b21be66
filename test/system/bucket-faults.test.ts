/*
 * A disk on a bucket while what it stands on is killed: its agent, its helper, and the bucket's
 * server.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { helpersOf } from '../helpers/bucket-helpers.ts';
import { BucketLoad, makeCold } from '../helpers/bucket-load.ts';
import { berthServer } from '../helpers/bucket-servers.ts';
import { diskOf, diskOn, output, textOf } from '../helpers/bucket-stack.ts';
import { LOOPBACK_BUCKETS, readMount } from '../helpers/buckets.ts';
import { isFull } from '../helpers/full.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { GiB } from '../../shared/units.ts';

const test = anyTest as TestFn<{ undo: AsyncDisposableStack; stack: Stack; other: Stack }>;

const RUN_MS = isFull ? 300_000 : 15_000;
const COLD_FILES = isFull ? 2_000 : 80;
const PAUSE_MS_MAX = 700;
const settings = {
  ...LOOPBACK_BUCKETS,
  BUCKET_SETTLE_MS: '5000',
  DISK_SIZE_BYTES: String(2 * GiB),
};

test.before(async (t) => {
  const undo = new AsyncDisposableStack();
  t.context.undo = undo;
  const start = async (): Promise<Stack> => {
    const stack = await Stack.start(settings);
    undo.defer(async () => {
      await stack.stop();
    });
    return stack;
  };
  const [stack, other] = [await start(), await start()];
  Object.assign(t.context, { stack, other });
});

test.after.always(async (t) => {
  await t.context.undo.disposeAsync();
});

const kill = (pids: readonly number[]): void => {
  for (const pid of pids) process.kill(pid, 'SIGKILL');
};

async function killAgent(stack: Stack): Promise<void> {
  await stack.agent.stop('SIGKILL');
  await stack.startAgent();
}

interface Parts {
  readonly stack: Stack;
  /** The bucket is one of its disks. */
  readonly other: Stack;
  readonly api: ApiClient;
  readonly id: string;
}

/** @returns how often each part was killed */
async function killAtRandom(
  { stack, other, api, id }: Parts,
  isOver: () => boolean,
): Promise<Record<string, number>> {
  const kills = { agent: 0, server: 0, helper: 0, helpers: 0 };
  while (!isOver()) {
    await sleep(Math.random() * PAUSE_MS_MAX);
    const dice = Math.random();
    const pids = await helpersOf(id);
    if (dice < 0.1) {
      kills.agent += 1;
      await killAgent(stack);
      // Its first use attaches the disk. Until then the helper alone holds up opens.
      await waitFor('the disk to be used again', async () => {
        const command = { command: 'true' };
        return (await api.call('POST', `/api/disks/${id}/exec`, command)).status === 200;
      });
    } else if (dice < 0.2) {
      kills.server += 1;
      await killAgent(other);
    } else if (pids.length === 3 && dice < 0.8) {
      kills.helper += 1;
      kill(pids.slice(kills.helper % 3).slice(0, 1));
    } else if (pids.length === 3) {
      kills.helpers += 1;
      kill(pids);
    }
  }
  return kills;
}

test('nothing acknowledged is lost and no zeros are read, whatever is killed', async (t) => {
  t.timeout(RUN_MS + 300_000);
  const { stack, other } = t.context;
  const [api, otherApi] = [await stack.newClient(), await other.newClient()];
  await using server = berthServer(other, otherApi);
  const bucket = await server.newBucket();
  await output(otherApi, diskOf(bucket), makeCold(COLD_FILES));
  const { id } = await diskOn(api, bucket);
  await output(api, id, 'true');
  const load = new BucketLoad(api, id, COLD_FILES);
  const until = performance.now() + RUN_MS;
  const isOver = (): boolean => performance.now() > until;
  const loads = Promise.all([
    load.write('a', isOver),
    load.write('b', isOver),
    load.readCold(isOver),
  ]);
  const kills = await killAtRandom({ stack, other, api, id }, isOver);
  await loads;
  t.log({ kills, acknowledged: load.acknowledged, failed: load.failed, read: load.read });
  const list = 'find . -type f -exec sha256sum {} +';
  await waitFor('the disk to be the same as its bucket', async () => {
    const { body } = await api.call('POST', `/api/disks/${id}/exec`, { command: 'echo 1 > end' });
    return body.success && (await textOf(bucket, 'end')) === '1\n';
  });
  await output(api, id, 'rm end');
  load.check('the disk', await output(api, id, list));
  const fresh = await diskOn(api, bucket);
  load.check('another disk on its bucket', await output(api, fresh.id, list));
  t.deepEqual(load.violations, []);
  t.true(load.acknowledged > 0);
  t.like(await readMount(api, id), { problemCount: 0 });
});
