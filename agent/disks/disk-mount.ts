import { mkdir, readdir, readFile, rmdir, statfs } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { AppError } from '../../shared/errors.ts';
import { native, UnmountFlag } from '../native/native.ts';
import { run } from '../spawn.ts';

/** How long a former mount of the image may take to end. */
const FREE_WITHIN_MS = 5_000;
const POLL_EVERY_MS = 20;

/** Whether a loop device of this host still stands on the image: its file system is in use then. */
async function isInUse(image: string): Promise<boolean> {
  const devices = (await readdir('/sys/block')).filter((name) => name.startsWith('loop'));
  for (const device of devices) {
    // The file is there only while the device is in use.
    const file = await readFile(`/sys/block/${device}/loop/backing_file`, 'utf8').catch(() => '');
    if (file.trim() === image) return true;
  }
  return false;
}

/** @returns false when the image is still in use after a while */
export async function untilFree(image: string): Promise<boolean> {
  const deadline = performance.now() + FREE_WITHIN_MS;
  while (await isInUse(image)) {
    if (performance.now() > deadline) return false;
    await sleep(POLL_EVERY_MS);
  }
  return true;
}

/**
 * Mounts a disk image through a loop device that the kernel frees with the mount. Nothing on a disk
 * can become a device or gain its owner's rights on the host.
 * @throws AppError `unavailable` while a former mount of the image has not ended
 */
export async function mountImage(image: string, target: string): Promise<void> {
  // Two mounts of one image would destroy it.
  if (!(await untilFree(image))) {
    throw new AppError('unavailable', 'the disk is still in use on this host; try again');
  }
  await mkdir(target, { recursive: true, mode: 0o700 });
  const options = 'loop,nodev,nosuid,noatime,discard,errors=remount-ro';
  await run('mount', ['-t', 'ext4', '-o', options, image, target]);
}

/** Writes everything back and detaches the image. @throws Error EBUSY while something uses it */
export async function unmountImage(target: string): Promise<void> {
  await native.unmount(target, 0);
  await rmdir(target);
}

/** Takes the mount away from the host at once; the kernel ends it when its last user is gone. */
export async function detachImage(target: string): Promise<void> {
  await native.unmount(target, UnmountFlag.detach);
}

/** Bytes in use on a mounted disk, as its superblock says (statfs(2)). */
export async function usedBytes(target: string): Promise<number> {
  const { blocks, bfree, bsize } = await statfs(target);
  return (blocks - bfree) * bsize;
}
