import { mountDisksPath } from '../../native/native.ts';
import type { MachineMount } from '../attachments.ts';
import { failpoint } from '../../system/failpoint.ts';
import { run } from '../../system/spawn.ts';

/** Arguments of the C helpers: four arguments for each disk (disk-trees.h). */
export const mountArguments = (
  mounts: readonly MachineMount[],
  target: (mount: MachineMount) => string,
): string[] =>
  mounts.flatMap((mount) => [
    mount.contents,
    mount.subdirectory,
    target(mount),
    mount.readOnly ? 'ro' : 'rw',
  ]);

/**
 * Mounts disks in a container that runs, in its mount namespace only (mount-disks.c). Idempotent.
 * @param pid a process of the container
 * @param owner the host's id of the container's root
 * @throws ProgramError, ProgramTimeoutError
 */
export async function mountInContainer(
  pid: number,
  owner: number,
  mounts: readonly MachineMount[],
): Promise<void> {
  if (mounts.length === 0) return;
  const disks = mountArguments(mounts, ({ path }) => path);
  await failpoint('mount in container', () =>
    run(mountDisksPath, [String(pid), String(owner), ...disks]),
  );
}
