/* A host that is asked for a disk whose storage hangs says so, and gives it up later. */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import type { Redis } from 'ioredis';
import { DiskActor } from '../../../agent/disks/disk-actor.ts';
import { isAttachedHere, isImageFree, mountImage } from '../../../agent/disks/mount.ts';
import { AppError } from '../../../shared/errors.ts';
import { newHostId } from '../../../shared/ids.ts';
import { MiB } from '../../../shared/units.ts';
import { openDiskHost } from '../../helpers/disk-host.ts';
import { FrozenStorage } from '../../helpers/frozen-storage.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { waitFor } from '../../helpers/wait.ts';

/** A number of loop devices that belongs to no host. */
const FIRST_LOOP = 500_000;
/** A disk on a storage of its own, and a host's actor for it. */
async function openDisk() {
  const stack = new AsyncDisposableStack();
  const { place, redis, disk, deps } = await openDiskHost(stack);
  const { directory, hostId } = deps;
  const actor = new DiskActor(deps, disk);
  stack.defer(() => actor.close(new AppError('unavailable', 'the test ends')));
  return {
    actor,
    directory,
    disk,
    hostId,
    place,
    redis,
    [Symbol.asyncDispose]: () => stack.disposeAsync(),
  };
}

test('a release of a disk whose storage hangs is refused soon, and works once it answers', async (t) => {
  t.timeout(120_000);
  await using opened = await openDisk();
  const { actor, directory, disk, place } = opened;
  await using storage = await FrozenStorage.mount(place);
  try {
    const claim = await actor.claim('a test', () => undefined);
    await writeFile(join(claim.path, 'file'), Buffer.alloc(MiB, 'late')); // Yet to be written back.
    claim.release();
    storage.freeze();
    await t.throwsAsync(actor.release(), { code: 'unavailable' });
    await t.throwsAsync(actor.release(), { code: 'unavailable' }, 'at once');
    storage.thaw();
    await waitFor('the storage', async () => !actor.isSetAside);
    await actor.release();
    const lease = await directory.diskLeases.acquire(disk, newHostId(), 1_000);
    if ('heldBy' in lease) return t.fail('another host cannot have it');
    await directory.diskLeases.release(lease);

    storage.freeze();
    await t.throwsAsync(actor.delete(), { code: 'unavailable' });
    const refused = await directory.diskLeases.acquire(disk, newHostId(), 1_000);
    t.true('heldBy' in refused, 'what hangs may still write');
  } finally {
    storage.thaw();
    await waitFor('the storage', async () => !actor.isSetAside);
    await actor.close(new AppError('unavailable', 'the test ends')); // The storage goes first.
  }
});

/** How many writes of leases Redis has done, by command. */
async function writesTo(redis: Redis): Promise<string[]> {
  const text = await redis.info('commandstats');
  return text.match(/cmdstat_(?:set|incr|sadd):calls=\d+/gu) ?? [];
}

test('a disk that was given up stays free, however often it is asked for', async (t) => {
  await using opened = await openDisk();
  const { actor, directory, disk, hostId, redis } = opened;
  (await actor.claim('a test', () => undefined)).release();
  await actor.release();
  const before = await writesTo(redis);
  await actor.release(); // A host that is drained does this once a second.
  t.deepEqual(await writesTo(redis), before);
  const former = await directory.diskLeases.acquire(disk, hostId, 1);
  t.false('heldBy' in former);
  await actor.release();
  const lease = await directory.diskLeases.acquire(disk, newHostId(), 1_000);
  t.like(lease, { formerHosts: [] }, 'a lease that ended without a release is released');
});

test('storage that is lost is told as such, whatever error it answers with', async (t) => {
  await using temporary = await temporaryDirectory();
  const place = join(temporary.path, 'storage');
  await mkdir(place);
  const image = join(place, 'image.ext4');
  await writeFile(image, Buffer.alloc(MiB));
  await using storage = await FrozenStorage.mount(place);
  storage.break();
  const target = join(temporary.path, 'mount');
  const calls = [
    () => mountImage(image, target, FIRST_LOOP),
    () => isImageFree(image),
    () => isAttachedHere(image, FIRST_LOOP, [target]),
  ];
  const failed = { code: 'unavailable', message: /the storage of the disk failed/u };
  for (const call of calls) await t.throwsAsync<AppError>(call(), failed);
});
