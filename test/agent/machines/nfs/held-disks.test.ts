/* Disks that sandboxes hold, over the end of an agent and of Redis. Storage and mounts are real. */
import test from 'ava';
import { pino } from 'pino';
import { DiskRegistry } from '../../../../agent/disks/disk-registry.ts';
import { HeldDisks } from '../../../../agent/machines/nfs/held-disks.ts';
import { Beat } from '../../../../agent/system/beat.ts';
import { mountsBelow } from '../../../../agent/system/mount-table.ts';
import { paths } from '../../../../agent/system/paths.ts';
import { run } from '../../../../agent/system/spawn.ts';
import { keys } from '../../../../shared/directory/keys.ts';
import { AppError } from '../../../../shared/errors.ts';
import { openDiskHost } from '../../../helpers/disk-host.ts';
import { newDiskRecord } from '../../../helpers/disk-record.ts';
import { waitFor } from '../../../helpers/wait.ts';

const log = pino({ level: 'silent' });
const ends = new AppError('unavailable', 'the agent ends');
const ignore = (): void => undefined;

/** Renews no lease: agents here end as if they were killed. */
class StoppedBeat extends Beat {
  override every(): () => void {
    return ignore;
  }
}

/** A host with two disks, of one account. The agent may be replaced by the next one. */
async function openScene() {
  await using undo = new AsyncDisposableStack();
  const { path, redis, record, disk, deps } = await openDiskHost(undo);
  const { accountId } = disk;
  const other = newDiskRecord({ accountId, name: 'other' });
  await deps.files.create(other);
  for (const each of [record, other]) await deps.directory.disks.create(each);
  const [first = '', second = ''] = [record.id, other.id].toSorted();
  undo.defer(async () => {
    for (const left of await mountsBelow(path)) await run('umount', [left]);
  });
  const startAgent = () => {
    const disks = new DiskRegistry({ ...deps, beat: new StoppedBeat() });
    const mounts = new HeldDisks({ runDir: deps.runDir, journal: deps.holds, disks, log });
    return { disks, mounts };
  };
  let agent = startAgent();
  const endAgent = async (): Promise<void> => {
    agent.mounts.close();
    await agent.disks.closeAll(ends);
    // A guard unmounts what lies elsewhere than at the place of held disks.
    for (const each of [first, second]) {
      const target = paths.mount(deps.runDir, each);
      if ((await mountsBelow(path)).includes(target)) await run('umount', [target]);
    }
  };
  undo.defer(endAgent);
  const stack = undo.move();
  return {
    ...{ redis, first, second },
    get mounts() {
      return agent.mounts;
    },
    hold: (id: string, ...diskIds: readonly string[]) =>
      agent.mounts.hold(
        { id, accountId },
        diskIds.map((diskId) => ({ diskId, path: '/data', subdirectory: '', readOnly: false })),
        ignore,
      ),
    /** Sandboxes that hold it, as journalled. */
    holders: async (diskId: string): Promise<string[]> =>
      (await deps.holds.list())
        .filter((row) => row.diskId === diskId)
        .map(({ sandboxId }) => sandboxId),
    /** Whether mount and lease outlive the agent. */
    isHeld: async (diskId: string) => {
      const lease = await redis.get(keys.diskLease('local-test', accountId, diskId));
      const mounts = await mountsBelow(path);
      const mounted = mounts.includes(paths.heldDisk(deps.runDir, diskId));
      return { mounted, leased: lease?.endsWith(' held') === true };
    },
    async restartAgent(): Promise<void> {
      await endAgent();
      agent = startAgent();
    },
    [Symbol.asyncDispose]: () => stack.disposeAsync(),
  };
}

const HELD = { mounted: true, leased: true };
const RELEASED = { mounted: false, leased: false };

test('a hold that a former agent left is released without that of another sandbox', async (t) => {
  await using scene = await openScene();
  const { first } = scene;
  await scene.hold('running', first);
  await scene.hold('cut off', first);
  await scene.restartAgent();
  await scene.mounts.recover(new Set(['running']));
  t.deepEqual(await scene.holders(first), ['running']);
  t.deepEqual(await scene.isHeld(first), HELD, 'its sandbox has yet to be taken over');
  await scene.hold('running', first);
  await scene.mounts.retain('running', []);
  t.deepEqual(await scene.holders(first), []);
  t.deepEqual(await scene.isHeld(first), RELEASED);
});

test('the last of several sandboxes at rest releases what a former agent left', async (t) => {
  await using scene = await openScene();
  const { first } = scene;
  await scene.hold('a', first);
  await scene.hold('b', first);
  await scene.restartAgent();
  await scene.mounts.recover(new Set(['a', 'b']));
  await Promise.all([scene.mounts.retain('a', []), scene.mounts.retain('b', [])]);
  t.deepEqual(await scene.holders(first), []);
  t.deepEqual(await scene.isHeld(first), RELEASED);
});

test('what could not be released is tried again, but not for a sandbox that is back', async (t) => {
  await using scene = await openScene();
  const { redis, first, second } = scene;
  await scene.hold('back', first);
  await scene.hold('gone', second);
  await scene.restartAgent();
  redis.disconnect();
  await scene.mounts.recover(new Set());
  await redis.connect();
  t.deepEqual(await scene.isHeld(second), HELD);
  await scene.hold('back', first);
  await waitFor('the release', async () => (await scene.holders(second)).length === 0);
  t.deepEqual(await scene.isHeld(second), RELEASED);
  t.deepEqual(await scene.holders(first), ['back']); // Its turn would have come before.
  t.deepEqual(await scene.isHeld(first), HELD);
  await scene.mounts.retain('back', []);
});

test('a disk whose release failed half-way is held anew by the next sandbox', async (t) => {
  await using scene = await openScene();
  const { redis, first } = scene;
  await scene.hold('former', first);
  redis.disconnect();
  await t.throwsAsync(scene.mounts.retain('former', []));
  await redis.connect();
  t.deepEqual(await scene.isHeld(first), { mounted: false, leased: true });
  await scene.hold('next', first);
  t.deepEqual(await scene.isHeld(first), HELD);
  await scene.mounts.retain('former', []);
  t.deepEqual(await scene.isHeld(first), HELD);
  await scene.mounts.retain('next', []);
  t.deepEqual(await scene.isHeld(first), RELEASED);
});
