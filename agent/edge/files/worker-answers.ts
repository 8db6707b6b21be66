import { AppError } from '../../../shared/errors.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import {
  decodeFileStat,
  FILE_STAT_BYTES,
  failureOf,
  type FileStat,
} from '../../sandboxes/files/file-records.ts';
import type { FileWorker } from '../../sandboxes/files/file-worker.ts';
import { MiB } from '../../../shared/units.ts';

/*
 * Answers of operations on files, as they come from a guest that may say anything: each length is
 * checked before so much is read.
 */

const TARGET_BYTES_MAX = 4096;
const LIST_BYTES_MAX = 4 * MiB;

const wrong = (what: string): AppError =>
  new AppError('unavailable', `the sandbox answered with ${what}, which is impossible`);

/** @param unchanged whether the operation asked for an unchanged file @throws AppError */
export async function readResult(worker: FileWorker, unchanged = false): Promise<void> {
  const failure = failureOf(await worker.takeNumber(2), unchanged);
  if (failure !== undefined) throw failure;
}

/** @throws AppError `unavailable` */
export async function readStat(worker: FileWorker): Promise<FileStat> {
  const bytes = await worker.take(FILE_STAT_BYTES);
  try {
    return decodeFileStat(bytes);
  } catch (cause) {
    throw new AppError('unavailable', 'the sandbox described a file that cannot exist on Linux', {
      cause,
    });
  }
}

/** Where a link leads; empty for anything else. */
export async function readTarget(worker: FileWorker): Promise<Buffer> {
  const length = await worker.takeNumber(2);
  if (length > TARGET_BYTES_MAX) throw wrong('a link that is too long');
  return worker.take(length);
}

export interface ListedFile {
  /** From the directory that is listed. */
  readonly path: Buffer;
  readonly stat: FileStat;
  readonly target: Buffer;
}

async function readEntry(worker: FileWorker, length: number): Promise<ListedFile> {
  if (length > SCHEMA_LIMITS.filePathBytesMax) throw wrong('a path that is too long');
  const path = await worker.take(length);
  if (path.includes(0) || path[0] === 0x2f) throw wrong('a path that is none');
  return { path, stat: await readStat(worker), target: await readTarget(worker) };
}

/** Reads a page of a directory. @returns `isCut`: there may be more after the last entry */
export async function readList(
  worker: FileWorker,
  limit: number,
): Promise<{ entries: ListedFile[]; isCut: boolean }> {
  const entries: ListedFile[] = [];
  let bytes = 0;
  for (;;) {
    const length = await worker.takeNumber(2);
    if (length === 0) break;
    const entry = await readEntry(worker, length);
    bytes += entry.path.length + entry.target.length;
    entries.push(entry);
    if (entries.length > limit || bytes > LIST_BYTES_MAX) throw wrong('too many entries');
  }
  const isCut = (await worker.takeNumber(1)) !== 0;
  await readResult(worker);
  return { entries, isCut };
}

const EVENTS = {
  1: 'ready',
  2: 'created',
  3: 'modified',
  4: 'removed',
  5: 'attributes',
  6: 'overflow',
  7: 'end',
} as const;

export interface FileEvent {
  readonly kind: (typeof EVENTS)[keyof typeof EVENTS];
  readonly isDirectory: boolean;
  /** From the directory that is watched. */
  readonly path: Buffer;
}

/** The next event, however long it takes to come. */
export async function readEvent(worker: FileWorker): Promise<FileEvent> {
  const head = await worker.take(4, true);
  const kind = EVENTS[head.readUInt8(0) as keyof typeof EVENTS] as FileEvent['kind'] | undefined;
  const length = head.readUInt16LE(2);
  if (kind === undefined || length > SCHEMA_LIMITS.filePathBytesMax) throw wrong('no such event');
  return { kind, isDirectory: head.readUInt8(1) !== 0, path: await worker.take(length) };
}
