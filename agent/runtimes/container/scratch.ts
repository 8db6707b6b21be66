import { mkdir, rm, rmdir, symlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { errnoOf } from '../../../shared/errors.ts';
import { MountFlag, native, UnmountFlag } from '../../native/native.ts';
import { mountsBelow } from '../../disks/mount-table.ts';
import { MOUNT_ROOT } from './bundle.ts';

/** The parts of a container's directory; all of it lives in memory, with a hard size. */
export const scratchPaths = (directory: string) => ({
  root: join(directory, 'root'),
  upper: join(directory, 'upper'),
  work: join(directory, 'work'),
  /** Seen at the mount root inside; disks are mounted on and below it. */
  mounts: join(directory, 'mounts'),
  config: join(directory, 'config.json'),
  runcLog: join(directory, 'runc.log'),
});

export interface ScratchSpec {
  readonly imageDir: string;
  readonly mountAliases: readonly string[];
  readonly sizeBytes: number;
}

/**
 * Makes a container's directory: scratch space, and the image's tree below it as a writable root.
 * The directory is a shared mount, so that disks mounted in it later reach the container.
 */
export async function mountScratch(directory: string, spec: ScratchSpec): Promise<void> {
  const { root, upper, work, mounts } = scratchPaths(directory);
  await mkdir(directory, { mode: 0o700 });
  const flags = MountFlag.nosuid | MountFlag.nodev;
  await native.mount('tmpfs', directory, 'tmpfs', flags, `size=${spec.sizeBytes},mode=0700`);
  await Promise.all([mkdir(root), mkdir(upper, { mode: 0o755 }), mkdir(work), mkdir(mounts)]);
  for (const alias of spec.mountAliases) {
    await mkdir(join(upper, dirname(alias)), { recursive: true, mode: 0o755 });
    await symlink(MOUNT_ROOT, join(upper, alias));
  }
  const layers = `lowerdir=${spec.imageDir},upperdir=${upper},workdir=${work}`;
  await native.mount('overlay', root, 'overlay', flags, layers);
  await native.mount('', directory, '', MountFlag.shared, '');
}

async function detachIfMounted(target: string): Promise<void> {
  try {
    await native.unmount(target, UnmountFlag.detach);
  } catch (error) {
    const code = errnoOf(error);
    if (code !== 'EINVAL' && code !== 'ENOENT') throw error;
  }
}

/** Takes a container's directory off the host. Idempotent. */
export async function removeScratch(directory: string): Promise<void> {
  await detachIfMounted(scratchPaths(directory).root);
  await detachIfMounted(directory);
  try {
    // Never recursive: a disk that were still mounted below would lose its contents.
    await rmdir(directory);
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error;
  }
}

/**
 * For leftovers: also what else may be mounted below the directory, and what a runc that outlived
 * its agent wrote where the mount had been.
 * @throws Error while something is mounted below: a disk's contents would go with the rest
 */
export async function reclaimScratch(directory: string): Promise<void> {
  for (const target of await mountsBelow(directory)) await detachIfMounted(target);
  await detachIfMounted(directory);
  const [left] = await mountsBelow(directory);
  if (left !== undefined) throw new Error(`${left} is still mounted`);
  await rm(directory, { recursive: true, force: true });
}
