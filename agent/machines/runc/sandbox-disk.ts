import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, open, rename, rm, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import Type from 'typebox';
import { AppError } from '../../../shared/errors.ts';
import { compile } from '../../../shared/validate.ts';
import { failpoint } from '../../system/failpoint.ts';
import { ProgramError, ProgramTimeoutError, run } from '../../system/spawn.ts';
import { syncPath, writeDurably } from '../../system/write-durably.ts';
import { readRecord } from '../../system/read-record.ts';

/*
 * A sandbox's changes lie in an ext4 file system in a sparse file of its own, the upper layer of
 * its root. The file's size bounds it; what it does not use takes no space on the host.
 */

const FILE = 'upper.ext4';
const RECORD = 'disk.json';
/** Time for a whole disk, which may be large. */
const COPY_MS_MAX = 600_000;
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
    throw new Error(`the image of the sandbox's disk, ${imageDir}, is gone`);
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
 * @param copy copies the file ({@link copyAtRest}, {@link copyMounted}). The source's state matters
 *   until then: what makes the copy durable, and shows it, comes afterwards
 * @throws AppError `unavailable` when the copy takes too long; what `copy` throws
 */
export async function copyDisk(
  from: string,
  to: string,
  copy: (file: string, path: string) => Promise<void>,
): Promise<void> {
  const { file, imageDir } = await imageOf(from);
  try {
    await placeDisk(to, imageDir, (path) => copy(file, path));
  } catch (error) {
    if (!(error instanceof ProgramTimeoutError)) throw error;
    const message = 'copying the disk takes too long; stop a sandbox that is paused, then fork it';
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
  await failpoint('place disk', async () => {
    await syncPath(partial);
    await rename(partial, join(directory, FILE));
    await syncPath(directory);
  });
}

/** Shares the blocks where the file system can, and copies only what there is. */
async function copyFile(
  from: string,
  to: string,
  options: { readonly sharedLock?: string; readonly timeoutMs?: number } = {},
): Promise<void> {
  const args = ['--reflink=auto', '--sparse=always', from, to];
  await run('cp', args, { timeoutMs: COPY_MS_MAX, ...options });
}

/**
 * Copies a disk whose container stands still, after everything that it wrote is in the file. The
 * loop device has the lock on it.
 * @throws ProgramTimeoutError
 */
export const copyMounted = (from: string, to: string, timeoutMs: number): Promise<void> =>
  copyFile(from, to, { timeoutMs: Math.max(1, timeoutMs) });

/**
 * Copies a disk that no container has. Any number of copies of one are made at once, as of a
 * snapshot: each has a shared lock on it.
 * @throws AppError `unavailable` when a container keeps the disk locked; ProgramTimeoutError
 */
export async function copyAtRest(from: string, to: string): Promise<void> {
  const deadline = performance.now() + FREE_MS_MAX;
  for (;;) {
    try {
      await copyFile(from, to, { sharedLock: from });
      return;
    } catch (error) {
      const isLocked = error instanceof ProgramError && error.exitCode === EXIT_LOCKED;
      if (!isLocked) throw error;
      if (performance.now() > deadline) {
        const message = "the sandbox's disk is still in use; try again";
        throw new AppError('unavailable', message, { cause: error });
      }
      await sleep(LOOK_MS);
    }
  }
}
