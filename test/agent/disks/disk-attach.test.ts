/* A host that cannot go on after it has mounted a disk, and what a failed unmount leaves of it. */
import { open, readFile, rmdir, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { pino } from 'pino';
import type { DiskLayout } from '../../../agent/disks/disk-layout.ts';
import { DiskActor } from '../../../agent/disks/disk-actor.ts';
import { mountImage } from '../../../agent/disks/mount.ts';
import { clearUploads } from '../../../agent/edge/s3/store/clear-uploads.ts';
import { mountsBelow } from '../../../agent/system/mount-table.ts';
import { paths } from '../../../agent/system/paths.ts';
import { run } from '../../../agent/system/spawn.ts';
import { StorageFence } from '../../../agent/system/storage-fence.ts';
import { keys } from '../../../shared/directory/keys.ts';
import { AppError } from '../../../shared/errors.ts';
import { newHostId } from '../../../shared/ids.ts';
import { openDiskHost } from '../../helpers/disk-host.ts';
import { loopsOn } from '../../helpers/loops.ts';
import { waitFor } from '../../helpers/wait.ts';

const log = pino({ level: 'silent' });
/**
 * A host with a disk that another host had before: its lease ended without a release.
 * @param former false: no other host had it
 */
async function openScene({ former = true }: { readonly former?: boolean } = {}) {
  await using undo = new AsyncDisposableStack();
  const { path, redis, record, disk, deps: own } = await openDiskHost(undo);
  const { runDir, directory, files, loops } = own;
  await directory.disks.create(record);
  const formerHost = newHostId();
  if (former) await directory.diskLeases.acquire(disk, formerHost, 1);
  // Says whom it was to fence, and ends that host's mount.
  const [fenced, formerMount] = [join(path, 'fenced'), join(path, 'former-host')];
  const program = join(path, 'fence');
  await writeFile(program, `#!/bin/sh\necho $1 >> ${fenced}\numount ${formerMount}\n`, {
    mode: 0o700,
  });
  const hooks = { onMounted: async (): Promise<void> => undefined };
  const onMounted = async (layout: DiskLayout): Promise<void> => {
    await clearUploads(layout);
    await hooks.onMounted();
  };
  const deps = { ...own, onMounted, fence: new StorageFence(program, log) };
  const actor = new DiskActor(deps, disk);
  undo.defer(async () => {
    await actor.close(new AppError('unavailable', 'the test ends'));
    for (const left of await mountsBelow(path)) await run('umount', [left]);
  });
  const lease = keys.diskLease('local-test', disk.accountId, disk.diskId);
  const isLeased = async (): Promise<boolean> => (await redis.exists(lease)) === 1;
  await waitFor('the end of the lease', async () => !(await isLeased()));
  const stack = undo.move();
  return {
    ...{ actor, hooks, redis, formerHost, formerMount, isLeased },
    nextActor: () => new DiskActor(deps, disk),
    image: files.imagePath(record.id),
    firstLoop: loops.firstNumber,
    target: paths.mount(runDir, record.id),
    mounts: () => mountsBelow(path),
    readFenced: () => readFile(fenced, 'utf8').catch(() => ''),
    [Symbol.asyncDispose]: () => stack.disposeAsync(),
  };
}
type Scene = Awaited<ReturnType<typeof openScene>>;

/** The disk can be used, and is mounted once. */
async function checkWorks(t: ExecutionContext, { actor, target, image, mounts }: Scene) {
  const claim = await actor.claim('a test', () => undefined);
  await writeFile(join(claim.path, 'file'), 'well');
  claim.release();
  t.deepEqual(await mounts(), [target]);
  t.is(loopsOn(image).length, 1);
}

/**
 * Has the host lose Redis when it has mounted the disk, and fail to unmount it: the mount point,
 * where something else is mounted as well, cannot be removed.
 */
async function failToUnmount(t: ExecutionContext, scene: Scene): Promise<void> {
  const { actor, hooks, redis, target } = scene;
  hooks.onMounted = async () => {
    await run('mount', ['-t', 'tmpfs', 'none', target]);
    redis.disconnect();
  };
  await t.throwsAsync(actor.claim('a test', () => undefined));
  hooks.onMounted = async () => undefined;
  await redis.connect();
  t.deepEqual(await scene.mounts(), [target], 'what is left');
  t.true(await scene.isLeased());
}

test('a disk is not left mounted when Redis is lost while a former host is recorded', async (t) => {
  await using scene = await openScene();
  const { actor, hooks, redis } = scene;
  hooks.onMounted = async () => redis.disconnect();
  await t.throwsAsync(actor.claim('a test', () => undefined));
  t.deepEqual(await scene.mounts(), []);
  hooks.onMounted = async () => undefined;
  await redis.connect();
  await checkWorks(t, scene);
  t.is(await scene.readFenced(), '');
});

test('a disk that a sandbox holds keeps its lease when the next agent cannot attach it', async (t) => {
  await using scene = await openScene({ former: false });
  const { actor, target } = scene;
  await actor.hold('a sandbox', () => undefined);
  await actor.close(new AppError('unavailable', 'the agent ends'));
  await run('umount', [target]); // By the guard.
  await rmdir(target);
  await writeFile(target, 'in the way');
  const next = scene.nextActor();
  await t.throwsAsync(next.claim('a test', () => undefined));
  t.true(await scene.isLeased(), 'no other host may have it');
  await unlink(target);
  await next.hold('a sandbox', () => undefined);
  await next.unhold('a sandbox');
  await next.close(new AppError('unavailable', 'the test ends'));
  t.deepEqual(await scene.mounts(), []);
});

test('a disk whose unmount failed is detached and mounted anew, and nobody is fenced', async (t) => {
  await using scene = await openScene();
  await failToUnmount(t, scene);
  await checkWorks(t, scene);
  t.is(await scene.readFenced(), '');
});

test('the same when no other host had the disk', async (t) => {
  await using scene = await openScene({ former: false });
  await mountImage(scene.image, scene.target, scene.firstLoop);
  await checkWorks(t, scene);
});

test('a disk whose unmount failed and that is in use is refused, and nobody is fenced', async (t) => {
  await using scene = await openScene();
  await failToUnmount(t, scene);
  const file = await open(join(scene.target, 'file'), 'w');
  try {
    const refused = { code: 'unavailable', message: /on this host still uses the disk/u };
    await t.throwsAsync(
      scene.actor.claim('a test', () => undefined),
      refused,
    );
    t.deepEqual(await scene.mounts(), []);
    t.true(await scene.isLeased(), 'no other host may have it');
    await t.throwsAsync(
      scene.actor.claim('a test', () => undefined),
      refused,
      'it is in no list',
    );
  } finally {
    await file.close();
  }
  await checkWorks(t, scene);
  t.is(await scene.readFenced(), '');
});

test('another host on this machine is fenced, also with the same numbers of loop devices', async (t) => {
  await using scene = await openScene();
  const { image, formerMount, firstLoop, formerHost } = scene;
  await mountImage(image, formerMount, firstLoop);
  await checkWorks(t, scene);
  t.is(await scene.readFenced(), `${formerHost}\n`);
});
