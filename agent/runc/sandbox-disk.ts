import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, open, rename, rm, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import Type from 'typebox';
import { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import { compile } from '../../shared/validate.ts';
import { ProgramError, ProgramTimeoutError, run } from '../system/spawn.ts';
import { syncPath, writeDurably } from '../system/write-durably.ts';
import { readRecord } from '../system/read-record.ts';

/*
 * A sandbox's changes lie in an ext4 file system in a sparse file of its own, the upper layer of
 * its root. The file's size bounds it; what it does not use takes no space on the host.
 */

const FILE = 'upper.ext4';
const RECORD = 'disk.json';
/** Time for a whole disk, which may be large. */
const COPY_MS_MAX = 600_000;
/**
 * Time while the container stands still: less than its sandbox would be ended for (copy-gate.ts).
 */
const COPY_MOUNTED_MS_MAX = LIMITS.sandboxCopyMsBase / 2;
/** How long a container that has just ended may still have its disk mounted. */
const FREE_MS_MAX = 10_000;
const LOOK_MS = 20;
/** leash.c: somebody else has the lock. */
const EXIT_LOCKED = 126;

const Record = Type.Object({ imageDir: Type.String({ pattern: '^/' }) });
const parse = compile(Record);

/** A disk, and the tree below it, which it does not work without. */
export interface SandboxDisk {
  readonly file: string;
  readonly imageDir: string;
}

export const hasDisk = (directory: string): boolean => existsSync(join(directory, FILE));

/** @throws Error when there is none, or its image is gone */
export async function imageOf(directory: string): Promise<SandboxDisk> {
  const record = await readRecord(join(directory, RECORD), parse);
  if (record === undefined) throw new Error('the sandbox has no disk');
  const { imageDir } = record;
  if (!existsSync(imageDir))
    throw new Error(`the image that its disk began with, ${imageDir}, is gone`);
  return { file: join(directory, FILE), imageDir };
}

/** Makes the file system that new disks are copied from, unless it is there. */
export async function makeEmptyDisk(path: string, sizeBytes: number): Promise<void> {
  if (existsSync(path)) return;
  const partial = `${path}.${randomBytes(6).toString('hex')}`;
  try {
    await (await open(partial, 'wx', 0o600)).close();
    await truncate(partial, sizeBytes);
    const extended = 'lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0';
    const format = ['-q', '-t', 'ext4', '-F', '-m', '0', '-J', 'size=32', '-E', extended, partial];
    await run('mke2fs', format);
    await run('debugfs', ['-w', '-f', '-', partial], { input: 'rmdir lost+found\n' });
    await syncPath(partial);
    await rename(partial, path);
  } finally {
    await rm(partial, { force: true });
  }
}

/** Makes the disk of a new sandbox, unless it has one. */
export async function makeDisk(
  directory: string,
  { emptyDisk, imageDir }: { readonly emptyDisk: string; readonly imageDir: string },
): Promise<void> {
  await placeDisk(directory, imageDir, (to) => copyFile(emptyDisk, to));
}

/**
 * Gives a sandbox a copy of another one's disk.
 * @param isMounted the container that has it stands still, and everything it wrote is in the file
 * @throws AppError `unavailable` when that container would stand still for too long, or somebody
 *   keeps the disk locked
 */
export async function copyDisk(
  from: string,
  to: string,
  { isMounted }: { readonly isMounted: boolean },
): Promise<void> {
  const { file, imageDir } = await imageOf(from);
  // The loop device of a mounted disk has the lock.
  const options = isMounted ? { timeoutMs: COPY_MOUNTED_MS_MAX } : { sharedLock: file };
  try {
    await placeDisk(to, imageDir, (path) => copyFile(file, path, options));
  } catch (error) {
    if (isLocked(error)) {
      const message = 'its disk is still in use; try again';
      throw new AppError('unavailable', message, { cause: error });
    }
    if (!(error instanceof ProgramTimeoutError)) throw error;
    const message = 'its disk holds more than can be copied now; stop it, and fork it then';
    throw new AppError('unavailable', message, { cause: error });
  }
}

/** The file appears last, and whole: a crash leaves a disk or none. */
async function placeDisk(
  directory: string,
  imageDir: string,
  make: (path: string) => Promise<void>,
): Promise<void> {
  await mkdir(directory, { recursive: true, mode: 0o700 });
  if (hasDisk(directory)) return;
  const partial = join(directory, `.${FILE}.partial`);
  await rm(partial, { force: true });
  await writeDurably(directory, RECORD, JSON.stringify({ imageDir }));
  await make(partial);
  await syncPath(partial);
  await rename(partial, join(directory, FILE));
  await syncPath(directory);
}

const isLocked = (error: unknown): boolean =>
  error instanceof ProgramError && error.exitCode === EXIT_LOCKED;

/**
 * Shares the blocks where the file system can, and copies only what there is. Any number of copies
 * of one disk are made at once: each has a shared lock on it, as snapshots have many readers.
 */
async function copyFile(
  from: string,
  to: string,
  options: { readonly sharedLock?: string; readonly timeoutMs?: number } = {},
): Promise<void> {
  const args = ['--reflink=auto', '--sparse=always', from, to];
  const deadline = performance.now() + FREE_MS_MAX;
  for (;;) {
    try {
      await run('cp', args, { timeoutMs: COPY_MS_MAX, ...options });
      return;
    } catch (error) {
      if (!isLocked(error) || performance.now() > deadline) throw error;
      await sleep(LOOK_MS);
    }
  }
}
