/*
 * A disk that nobody uses: on object storage it is given up once all of it is there; when the host
 * has as many disks attached as it may, at once.
 */
import FakeTimers from '@sinonjs/fake-timers';
import test from 'ava';
import { AttachedDisks } from '../../../agent/disks/attached-disks.ts';
import { DiskActor } from '../../../agent/disks/disk-actor.ts';
import type { DiskClaim } from '../../../agent/disks/disk-claims.ts';
import { AppError } from '../../../shared/errors.ts';
import { DISK_LIMITS } from '../../../agent/disks/limits.ts';
import type { StoredBucket } from '../../../shared/schemas/disk-bucket.ts';
import { openDiskHost } from '../../helpers/disk-host.ts';
import { newDiskRecord } from '../../helpers/disk-record.ts';
import { waitFor } from '../../helpers/wait.ts';

const nothing = async (): Promise<void> => undefined;
const mount: StoredBucket = {
  id: 'mnt-0000000000000000',
  type: 's3-compatible',
  bucketName: 'bucket',
  prefix: '',
  writeBack: 'sync',
  sealedCredentials: '',
};

/** A disk whose storage takes what is settled at the times that the test says. */
async function openScene() {
  await using undo = new AsyncDisposableStack();
  const { record, disk, deps } = await openDiskHost(undo);
  await deps.directory.disks.create({ ...record, mounts: [mount] });
  const settles: ((isSettled: boolean) => void)[] = [];
  const attached = {
    ...{ bytes: 0, ready: nothing, detach: nothing, unmounted: nothing },
    begin: () => ({ closed: () => undefined, settle: nothing, end: () => undefined }),
    trySettle: () => new Promise<boolean>((resolve) => settles.push(resolve)),
  };
  const backing = { check: nothing, attach: async () => attached, close: nothing };
  const actor = new DiskActor({ ...deps, backing }, disk);
  undo.defer(() => actor.close(new AppError('unavailable', 'the test ends')));
  const stack = undo.move();
  return { actor, settles, [Symbol.asyncDispose]: () => stack.disposeAsync() };
}

/** Releases the last claim on the disk, and has the time go by that it stays attached for. */
function leaveIdle(claim: DiskClaim): void {
  const toFake = ['setTimeout', 'clearTimeout'] as const;
  const clock = FakeTimers.install({ toFake: [...toFake], shouldClearNativeTimers: true });
  try {
    claim.release();
    clock.tick(DISK_LIMITS.diskIdleUnmountMs);
  } finally {
    clock.uninstall();
  }
}

test('a disk that is idle can be used while the rest of it is uploaded', async (t) => {
  await using scene = await openScene();
  const { actor, settles } = scene;
  leaveIdle(await actor.claim('first', () => undefined));
  await waitFor('the upload', async () => settles.length === 1);
  const claim = await actor.claim('second', () => undefined);
  settles[0]?.(true);
  await actor.record(); // Comes after whatever the upload's end has led to.
  t.true(actor.isAttached, 'it is in use');
  claim.release();
  await actor.record();
  t.true(actor.isAttached, 'it was in use just now');
});

test('a disk that was used meanwhile is given up when it was idle for as long again', async (t) => {
  await using scene = await openScene();
  const { actor, settles } = scene;
  leaveIdle(await actor.claim('first', () => undefined));
  await waitFor('the upload', async () => settles.length === 1);
  const claim = await actor.claim('second', () => undefined);
  claim.release();
  settles[0]?.(true);
  await actor.record();
  t.true(actor.isAttached);
  leaveIdle(await actor.claim('third', () => undefined));
  await waitFor('the next upload', async () => settles.length === 2);
  settles[1]?.(true);
  await waitFor('the disk to be given up', async () => !actor.isAttached);
});

test('a disk that could not be uploaded stays', async (t) => {
  await using scene = await openScene();
  const { actor, settles } = scene;
  leaveIdle(await actor.claim('first', () => undefined));
  await waitFor('the upload', async () => settles.length === 1);
  settles[0]?.(false);
  await actor.record();
  t.true(actor.isAttached);
});

test('a disk that is idle makes room for the next one, and one in use does not', async (t) => {
  await using undo = new AsyncDisposableStack();
  const { disk, deps } = await openDiskHost(undo);
  const record = newDiskRecord();
  await deps.files.create(record);
  const parts = { ...deps, attachedDisks: new AttachedDisks({ count: 1, perAccountMax: 1 }) };
  const first = new DiskActor(parts, disk);
  const second = new DiskActor(parts, { accountId: record.accountId, diskId: record.id });
  for (const actor of [first, second]) {
    undo.defer(() => actor.close(new AppError('unavailable', 'the test ends')));
  }
  const claim = await first.claim('first', () => undefined);
  const claimSecond = (): Promise<DiskClaim> => second.claim('second', () => undefined);
  await t.throwsAsync(claimSecond(), { code: 'no_capacity' });
  claim.release();
  const again = await first.claim('first', () => undefined);
  await t.throwsAsync(claimSecond(), { code: 'no_capacity' }, 'it is in use again');
  again.release();
  (await claimSecond()).release();
  t.deepEqual([first.isAttached, second.isAttached], [false, true]);
  await second.release();
  (await first.claim('first', () => undefined)).release();
  t.true(first.isAttached, 'what was given up is free');
});
