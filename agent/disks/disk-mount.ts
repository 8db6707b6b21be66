import { mkdir, rmdir, statfs } from 'node:fs/promises';
import { native, UnmountFlag } from '../native/native.ts';
import { run } from '../spawn.ts';

/**
 * Mounts a disk image through a loop device that the kernel frees with the mount. Nothing on a disk
 * can become a device or gain its owner's rights on the host.
 */
export async function mountImage(image: string, target: string): Promise<void> {
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
