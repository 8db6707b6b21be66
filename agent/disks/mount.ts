import { mkdir, rmdir, statfs } from 'node:fs/promises';
import { AppError } from '../../shared/errors.ts';
import { DISK_LIMITS } from './limits.ts';
import { diskProgramPath, native } from '../native/native.ts';
import { mountsOf } from '../system/mount-table.ts';
import { ProgramError, ProgramTimeoutError, run } from '../system/spawn.ts';
import { isStorageFailure } from '../system/storage-failure.ts';

/** How long to wait for an earlier attachment of the image to end. */
const FREE_WITHIN_MS = 4_000;
/** The same on another host that has had no lease for a while. */
const LEFT_WITHIN_MS = 1_000;

/** Exit codes of disk.c. */
const EXIT = { noImage: 3, inUse: 4, attachedElsewhere: 5, storageFailed: 6, noLoop: 7 } as const;

/** The image is attached to a loop device that was set up outside of Berth, without the lock. */
export class AttachedElsewhereError extends AppError {
  constructor(cause: unknown) {
    const message = 'the disk is attached to this host outside of Berth; detach it there first';
    super('unavailable', message, { cause });
  }
}

/** The image is locked by whoever has it attached: this host or another one. */
export class StillAttachedError extends AppError {
  constructor(cause: unknown) {
    super('unavailable', 'the disk is still attached elsewhere; try again', { cause });
  }
}

const storageFailed = (cause: unknown): AppError =>
  new AppError('unavailable', 'the storage of the disk failed; try again', { cause });

const noLoop = (cause: unknown): AppError =>
  new AppError('no_capacity', 'every loop device of the host is taken; try again', { cause });

/** The error for callers of a call on a disk that is being attached. */
export function toAppError(error: unknown): unknown {
  if (isStorageFailure(error)) return storageFailed(error);
  if (!(error instanceof ProgramError)) return error;
  switch (error.exitCode) {
    case EXIT.noImage: {
      return new AppError('not_found', 'the disk has no data on this storage', { cause: error });
    }
    case EXIT.inUse: {
      return new StillAttachedError(error);
    }
    case EXIT.attachedElsewhere: {
      return new AttachedElsewhereError(error);
    }
    case EXIT.storageFailed: {
      return storageFailed(error);
    }
    case EXIT.noLoop: {
      return noLoop(error);
    }
    default: {
      return error;
    }
  }
}

const disk = (args: readonly (string | number)[], timeoutMs: number): Promise<string> =>
  run(diskProgramPath, args.map(String), { timeoutMs });

/**
 * Mounts a disk image through a loop device. The kernel frees the device with the mount, and the
 * device holds the lock on the image for as long as it exists (disk.c).
 * @param firstLoop the first loop device number that belongs to this host (LoopDevices)
 * @throws StillAttachedError while the image is attached already; AppError `not_found`,
 *   `unavailable` when its storage fails, `no_capacity`; ProgramTimeoutError when the storage does
 *   not answer
 */
export async function mountImage(image: string, target: string, firstLoop: number): Promise<void> {
  await mkdir(target, { recursive: true, mode: 0o700 });
  try {
    await disk(['attach', image, target, firstLoop, FREE_WITHIN_MS], DISK_LIMITS.diskAttachMsMax);
  } catch (error) {
    throw toAppError(error);
  }
}

/**
 * Mounts, read-only, an image that nobody writes to any more; any number of times, and also while a
 * former mount of it lives on in a container. Undone by {@link unmountLeftover}.
 * @throws AppError `no_capacity`; ProgramError, ProgramTimeoutError
 */
export async function mountReadOnly(
  image: string,
  target: string,
  firstLoop: number,
): Promise<void> {
  await mkdir(target, { recursive: true, mode: 0o700 });
  try {
    await disk(['attach-read-only', image, target, firstLoop], DISK_LIMITS.diskAttachMsMax);
  } catch (error) {
    throw error instanceof ProgramError && error.exitCode === EXIT.noLoop ? noLoop(error) : error;
  }
}

/**
 * Writes everything back and detaches the image. A mount that is still in use disappears from the
 * host at once (a lazy unmount), and the kernel detaches the image when its last user is gone.
 * @returns whether the image is free, so that another host may attach it
 * @throws ProgramTimeoutError when the storage does not answer; the image is then not free
 */
export async function unmountImage(
  image: string,
  target: string,
): Promise<{ isFree: boolean; wasInUse: boolean }> {
  try {
    const output = await disk(
      ['detach', image, target, FREE_WITHIN_MS],
      DISK_LIMITS.diskDetachMsMax,
    );
    return { isFree: true, wasInUse: output.includes('lazily') };
  } catch (error) {
    if (!(error instanceof ProgramError) || error.exitCode !== EXIT.inUse) throw error;
    return { isFree: false, wasInUse: true };
  }
}

/**
 * Whether nobody has the image attached, as its lock tells; also for other hosts, on storage whose
 * locks hold between hosts. False, too, when the storage does not answer in time: it may wait for
 * another host, such as a metadata server of CephFS for a client that is frozen.
 * @throws AppError `unavailable` when the storage fails
 */
export async function isImageFree(image: string): Promise<boolean> {
  try {
    await disk(['await', image, LEFT_WITHIN_MS], DISK_LIMITS.diskProbeMsMax);
    return true;
  } catch (error) {
    if (error instanceof ProgramTimeoutError) return false;
    if (error instanceof ProgramError && error.exitCode === EXIT.inUse) return false;
    throw toAppError(error);
  }
}

/**
 * Whether this host itself has the image attached. The lock does not tell whose it is, but the loop
 * device does by its number. A second host on this machine may have the same numbers: it has the
 * device mounted at a place of its own.
 * @param targets where this host mounts the image
 * @throws AppError `unavailable` when the storage fails, `not_found` when it has no image
 */
export async function isAttachedHere(
  image: string,
  firstLoop: number,
  targets: readonly string[],
): Promise<boolean> {
  let name: string;
  try {
    name = (await disk(['find', image, firstLoop], DISK_LIMITS.diskProbeMsMax)).trim();
  } catch (error) {
    if (error instanceof ProgramTimeoutError) return false;
    throw toAppError(error);
  }
  if (name === '') return false;
  const mounts = await mountsOf(`/dev/${name}`);
  // A mount that was given up lazily is in use, and in no list.
  return mounts.length === 0 || mounts.some((target) => targets.includes(target));
}

/**
 * Unmounts without waiting until the image is free; lazily if something uses it.
 * @throws ProgramTimeoutError
 */
export async function unmountLeftover(target: string): Promise<void> {
  await disk(['detach', '', target, 0], DISK_LIMITS.diskDetachMsMax);
}

/**
 * Ends all writes to a mounted disk: what is not on its image yet is lost, as on a host that loses
 * power. The mount stays, and every call on it fails; to unmount it then writes nothing.
 * @throws ProgramError, ProgramTimeoutError
 */
export async function abandonMount(target: string): Promise<void> {
  await disk(['abandon', target], DISK_LIMITS.diskDetachMsMax);
}

/**
 * Mounts a mounted disk once more elsewhere. Both are the same file system: it and its loop device
 * stay as long as one of the mounts does.
 */
export async function mountAgain(mounted: string, target: string): Promise<void> {
  await mkdir(target, { recursive: true, mode: 0o700 });
  try {
    await native.attach(mounted, '', target, 0, -1);
  } catch (error) {
    await rmdir(target);
    throw error;
  }
}

/** Removes this host's loop devices that nothing is attached to. */
export async function sweepLoops(firstLoop: number): Promise<void> {
  await disk(['sweep', firstLoop], DISK_LIMITS.loopSweepMsMax);
}

/** Bytes in use on a mounted disk (statfs(2)). */
export async function usedBytes(target: string): Promise<number> {
  const { blocks, bfree, bsize } = await statfs(target);
  return (blocks - bfree) * bsize;
}
