import { chown, lchown, mkdir, rm, rmdir, symlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { errnoOf, ignoring } from '../../shared/errors.ts';
import { MountFlag, native, toolsRoot, UnmountFlag } from '../native/native.ts';
import { mountsBelow } from '../system/mount-table.ts';
import { MOUNT_ROOT } from '../machines/oci/bundle.ts';
import type { ContainerUsers } from '../machines/oci/container-users.ts';

/** The parts of a container's directory, which is in memory and has a fixed maximum size. */
export const scratchPaths = (directory: string) => ({
  root: join(directory, 'root'),
  /** The image with its owners mapped to the container's users; only while the root is mounted. */
  image: join(directory, 'image'),
  upper: join(directory, 'upper'),
  work: join(directory, 'work'),
  /** Mounted at `/dev` inside. */
  devices: join(directory, 'dev'),
  /** Mounted at the mount root inside; disks are mounted on and below it. */
  mounts: join(directory, 'mounts'),
  config: join(directory, 'config.json'),
  runcLog: join(directory, 'runc.log'),
});

export interface ScratchSpec {
  readonly imageDir: string;
  readonly mountAliases: readonly string[];
  readonly sizeBytes: number;
  /** Undefined: root inside is root of the host. */
  readonly users: ContainerUsers | undefined;
}

/** Creates the directories of a path below `top`, which exists, for this user and group. */
export async function makeDirectories(top: string, path: string, owner: number): Promise<void> {
  let made = top;
  for (const name of path.split('/').filter((part) => part !== '')) {
    made = join(made, name);
    try {
      await mkdir(made, { mode: 0o755 });
    } catch (error) {
      if (errnoOf(error) === 'EEXIST') continue;
      throw error;
    }
    if (owner !== 0) await chown(made, owner, owner);
  }
}

/**
 * Mounts the image and our tools below a writable layer. Containers share files of the lower layers
 * only: what a container locks, watches, or leases is a file of its own overlay.
 */
async function mountRoot(directory: string, { imageDir, users }: ScratchSpec): Promise<void> {
  const { root, image, upper, work } = scratchPaths(directory);
  const layers = (of: string): string =>
    `lowerdir=${toolsRoot}:${of},upperdir=${upper},workdir=${work}`;
  const flags = MountFlag.nosuid | MountFlag.nodev;
  if (users === undefined) {
    await native.mount('overlay', root, 'overlay', flags, layers(imageDir));
    return;
  }
  await mkdir(image);
  await native.attach(imageDir, '', image, 0, users.namespace);
  await native.mount('overlay', root, 'overlay', flags, layers(image));
  await native.unmount(image, UnmountFlag.detach); // The overlay keeps its own reference to the mount.
}

/**
 * Creates a container's directory: scratch space, devices, and a writable root. It is a shared
 * mount, so that disks mounted in it later appear in the container.
 */
export async function mountScratch(directory: string, spec: ScratchSpec): Promise<void> {
  const { root, upper, work, devices } = scratchPaths(directory);
  const owner = spec.users?.firstId ?? 0;
  await mkdir(directory, { mode: 0o700 });
  // Devices are usable in it: only root and the container's users can reach it.
  const options = `size=${spec.sizeBytes},mode=0700,uid=${owner},gid=${owner}`;
  await native.mount('tmpfs', directory, 'tmpfs', MountFlag.nosuid, options);
  await Promise.all([
    mkdir(root),
    mkdir(work),
    mkdir(devices, { mode: 0o755 }).then(() => native.makeDevices(devices, owner)),
    makeDirectories(directory, 'upper', owner),
    makeDirectories(directory, 'mounts', owner),
  ]);
  for (const alias of spec.mountAliases) {
    await makeDirectories(upper, dirname(alias), owner);
    await symlink(MOUNT_ROOT, join(upper, alias));
    await lchown(join(upper, alias), owner, owner);
  }
  await mountRoot(directory, spec);
  await native.mount('', directory, '', MountFlag.shared, '');
}

const detachIfMounted = (target: string): Promise<void> =>
  native.unmount(target, UnmountFlag.detach).catch(ignoring('EINVAL', 'ENOENT'));

/** Removes a container's directory from the host. Idempotent. */
export async function removeScratch(directory: string): Promise<void> {
  const { root, image } = scratchPaths(directory);
  await detachIfMounted(image);
  await detachIfMounted(root);
  await detachIfMounted(directory);
  // Never recursive: a disk that is still mounted below would lose its contents.
  await rmdir(directory).catch(ignoring('ENOENT'));
}

/**
 * Removes the directory of a former agent's container, with other mounts below it and with files
 * that a runc which outlived its agent wrote to the mount point.
 * @throws Error while something is still mounted below, since a disk's contents would be deleted
 *   too
 */
export async function reclaimScratch(directory: string): Promise<void> {
  for (const target of await mountsBelow(directory)) await detachIfMounted(target);
  await detachIfMounted(directory);
  const [left] = await mountsBelow(directory);
  if (left !== undefined) throw new Error(`${left} is still mounted`);
  await rm(directory, { recursive: true, force: true });
}
