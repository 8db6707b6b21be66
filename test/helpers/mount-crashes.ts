import { mountsBelow } from '../../agent/system/mount-table.ts';
import { paths } from '../../agent/system/paths.ts';
import { runDirOf } from './host.ts';
import { type CrashContext, crashTest } from './crash-test.ts';
import type { Environment } from './daemon.ts';
import { createDisk, exec } from './disks.ts';
import {
  type ApiSandbox,
  createSandbox,
  outputOf,
  removeSandbox,
  settledSandbox,
} from './sandboxes.ts';
import type { Stack } from './stack.ts';
import { waitFor } from './wait.ts';

type Serial = ReturnType<typeof crashTest>['serial'];

export interface MountCrashes {
  readonly settings: Environment;
  /** Failpoints from holding the disk until the sandbox has it. */
  readonly holding: readonly string[];
  /** Failpoints of releasing it. */
  readonly releasing: readonly string[];
  readonly moments: readonly ('before' | 'after')[];
}

async function heldBy(
  stack: Stack,
  diskId: string,
): Promise<{ mounted: boolean; leased: boolean }> {
  const runDir = runDirOf(stack.environment);
  const redis = await stack.redisClient();
  const [key = ''] = await redis.keys(`*:disk:${diskId}:lease`);
  const lease = key === '' ? null : await redis.get(key);
  const mounted = (await mountsBelow(runDir)).includes(paths.heldDisk(runDir, diskId));
  return { mounted, leased: lease?.endsWith(' held') === true };
}

/** The next agent takes the same steps, so the failpoint goes first. */
async function restart({ stack, points }: CrashContext): Promise<void> {
  await waitFor('the agent to crash', async () => !stack.agent.isRunning, 60_000);
  await points.disarm();
  await stack.startAgent();
}

const RELEASED = { mounted: false, leased: false };
const isReleased = async (stack: Stack, diskId: string): Promise<boolean> => {
  const { mounted, leased } = await heldBy(stack, diskId);
  return !mounted && !leased;
};

function testHolding(test: Serial, moment: string, point: string): void {
  test(`killed ${moment} ${point}: the sandbox has its disk, or neither is held`, async (t) => {
    const { stack, api, points } = t.context;
    const { id: disk } = await createDisk(api);
    await exec(api, disk, 'echo kept > file');
    await points.arm(`${moment} ${point}`);
    const body = { mem_size_mib: 256, mounts: [{ disk_id: disk, path: '/data' }] };
    await api.call('POST', '/api/sandboxes', body);
    await restart(t.context);
    const { sandboxes } = await api.data<{ sandboxes: ApiSandbox[] }>(
      'GET',
      `/api/sandboxes?filesystem=${disk}`,
    );
    for (const { sandbox_id: id } of sandboxes) {
      const { status } = await settledSandbox(api, id);
      t.is(status, 'running');
      t.is(await outputOf(api, id, 'cat /data/file'), 'kept\n');
      t.deepEqual(await heldBy(stack, disk), { mounted: true, leased: true });
      await removeSandbox(api, id);
    }
    await waitFor('the disk to be released', () => isReleased(stack, disk));
    t.is((await exec(api, disk, 'cat file')).stdout, 'kept\n');
  });
}

function testReleasing(test: Serial, moment: string, point: string): void {
  test(`killed ${moment} ${point}: the disk is released by the next agent`, async (t) => {
    const { stack, api, points } = t.context;
    const { id: disk } = await createDisk(api);
    const box = await createSandbox(api, { mounts: [{ disk_id: disk, path: '/data' }] });
    await outputOf(api, box.sandbox_id, 'echo kept > /data/file; sync /data/file');
    await points.arm(`${moment} ${point}`);
    await api.call('POST', `/api/sandboxes/${box.sandbox_id}/stop`);
    await restart(t.context);
    await waitFor('the disk to be released', () => isReleased(stack, disk));
    t.deepEqual(await heldBy(stack, disk), RELEASED);
    t.is((await exec(api, disk, 'cat file')).stdout, 'kept\n');
    await removeSandbox(api, box.sandbox_id);
    t.is((await api.call('DELETE', `/api/disks/${disk}`)).status, 200);
  });
}

/**
 * Declares the tests of a file in which the agent is killed at each step of holding and releasing
 * the disk of a sandbox. The next agent either has the sandbox with its disk, or nothing of either;
 * the disk stays usable.
 */
export function testMountCrashes({ settings, holding, releasing, moments }: MountCrashes): void {
  const { serial } = crashTest(settings);
  for (const moment of moments) {
    for (const point of holding) testHolding(serial, moment, point);
    for (const point of releasing) testReleasing(serial, moment, point);
  }
}
