import { rm } from 'node:fs/promises';
import { Failure } from '../failure.ts';
import type { Output } from '../output.ts';
import { visible } from '../text.ts';
import { Attempts } from './attempts.ts';
import { type CopyTally, Counter, download, noteSkipped } from './copy.ts';
import {
  contentOf,
  type LocalEntry,
  lookAt,
  makeDirectories,
  md5Of,
  pathBelow,
  walk,
} from './local-files.ts';
import { joinPath, nothingAt, type Place, type Transfer } from './place.ts';
import { forEachOf } from './pool.ts';
import type { RemoteEntry, RemoteFiles } from './remote-files.ts';

/** Options of `sync`. */
export interface SyncOptions {
  readonly remote: RemoteFiles;
  readonly output: Output;
  readonly jobs: number;
  /** Remove from the target what the source does not have. */
  readonly deletes: boolean;
  /** Only say what would be done. */
  readonly isDry: boolean;
}

/** Counts of a sync, done or planned. */
export interface SyncTally extends CopyTally {
  /** How many files were the same on both sides. */
  readonly unchanged: number;
  readonly deleted: number;
}

/** Either side of a sync. */
interface Listing<T> {
  /** By path. */
  readonly files: ReadonlyMap<string, T>;
  /** Paths that were left out, with everything below them: nobody knows here what is there. */
  readonly leftOut: ReadonlySet<string>;
}

interface Plan {
  /** Files that the target lacks, or has with other content. */
  readonly copied: string[];
  /** Files of the target that are to be deleted. */
  readonly gone: readonly string[];
  unchanged: number;
}

/** @param failed is told of what cannot be looked at */
async function listLocal(
  directory: string,
  output: Output,
  failed: (path: string, error: Error) => void,
): Promise<Listing<LocalEntry>> {
  const files = new Map<string, LocalEntry>();
  const leftOut = new Set<string>();
  const skipped: string[] = [];
  if ((await lookAt(directory)) === undefined) return { files, leftOut };
  const entries = walk(directory, {
    skipped: (path) => {
      skipped.push(path);
      leftOut.add(path);
    },
    failed: (path, error) => {
      leftOut.add(path);
      failed(path, error);
    },
  });
  for await (const entry of entries) {
    if (entry.type === 'file') files.set(entry.path, entry);
  }
  noteSkipped(output, skipped);
  return { files, leftOut };
}

async function listRemote(remote: RemoteFiles, directory: string): Promise<Listing<RemoteEntry>> {
  const files = new Map<string, RemoteEntry>();
  const leftOut = new Set<string>();
  for await (const entry of remote.list(directory)) {
    if (entry.type === 'file') files.set(entry.path, entry);
    else if (entry.type === 'other') leftOut.add(entry.path);
  }
  return { files, leftOut };
}

/** Whether a path, or a directory above it, is one of these. */
function isWithin(path: string, tops: ReadonlySet<string>): boolean {
  if (tops.has(path)) return true;
  const slash = path.lastIndexOf('/');
  return slash !== -1 && isWithin(path.slice(0, slash), tops);
}

/**
 * Files of the target that the source does not have. A file at or below a path that the source's
 * listing left out is none: there is something in the source, such as a link in place of a
 * directory.
 */
function filesGone(source: Listing<unknown>, target: Listing<unknown>): string[] {
  return [...target.files.keys()].filter(
    (path) => !source.files.has(path) && !isWithin(path, source.leftOut),
  );
}

const MD5_ETAG = /^"([\da-f]{32})"$/u;

/**
 * Whether both sides have the same file. A download leaves the remote time on the local file; after
 * an upload the MD5 decides, which is then the ETag. "Older than the upload" would not do: a file
 * may have been moved into place with its old time.
 */
async function isSame(
  directory: string,
  local: LocalEntry | undefined,
  remote: RemoteEntry | undefined,
): Promise<boolean> {
  if (local === undefined || remote === undefined || local.size !== remote.size) return false;
  if (remote.modifiedAt?.getTime() === Math.round(local.modifiedMs)) return true;
  const [, md5] = MD5_ETAG.exec(remote.etag ?? '') ?? [];
  return md5 !== undefined && md5 === (await md5Of(pathBelow(directory, local.path), local.size));
}

async function makePlan(
  directory: string,
  { direction }: Transfer,
  local: Listing<LocalEntry>,
  remote: Listing<RemoteEntry>,
  { jobs, deletes }: SyncOptions,
  attempts: Attempts,
): Promise<Plan> {
  const [source, target] = direction === 'up' ? [local, remote] : [remote, local];
  const gone = deletes ? filesGone(source, target) : [];
  const plan: Plan = { copied: [], gone, unchanged: 0 };
  await forEachOf(source.files.keys(), jobs, (path) =>
    attempts.of(path, async () => {
      const isEqual = await isSame(directory, local.files.get(path), remote.files.get(path));
      if (isEqual) plan.unchanged += 1;
      else plan.copied.push(path);
    }),
  );
  return plan;
}

/**
 * With `--delete`, a source that is not there would empty the target.
 * @throws Failure unless the source is a directory
 */
async function requireSource(
  from: Exclude<Place, { readonly kind: 'standard' }>,
  remote: RemoteFiles,
): Promise<void> {
  const [path, type] =
    from.kind === 'local'
      ? [from.path, (await lookAt(from.path))?.type]
      : [`${from.name}:${from.path}`, await remote.typeOf(from.path)];
  if (type === undefined) throw nothingAt(path);
  if (type === 'directory') return;
  throw new Failure(`${visible(path)} is not a directory`, 'berth disk cp copies files');
}

/** Makes a directory of a disk like a local one, or the other way round. */
export async function sync(transfer: Transfer, options: SyncOptions): Promise<SyncTally> {
  const { remote, output, jobs, deletes, isDry } = options;
  const { from, to } = transfer;
  if (from.kind === 'standard' || to.kind === 'standard') {
    throw new Failure('- is not a directory', 'berth disk cp copies stdin and stdout');
  }
  const [here, there] = transfer.direction === 'up' ? [from.path, to.path] : [to.path, from.path];
  await requireSource(from, remote);
  using progress = output.progress('comparing');
  const attempts = new Attempts();
  // In the target, it matters only where something might have to be deleted.
  const isConcerned = transfer.direction === 'up' || deletes;
  const failed = isConcerned ? attempts.note : () => undefined;
  const [local, listed] = await Promise.all([
    listLocal(here, output, failed),
    listRemote(remote, there),
  ]);
  const plan = await makePlan(here, transfer, local, listed, options, attempts);
  const { copied, gone, unchanged } = plan;
  const source: Listing<{ readonly size: number }> = transfer.direction === 'up' ? local : listed;
  const bytes = copied.reduce((sum, path) => sum + (source.files.get(path)?.size ?? 0), 0);
  if (isDry) {
    for (const path of copied) output.text(output.isJson ? '' : `would copy ${visible(path)}\n`);
    for (const path of gone) output.text(output.isJson ? '' : `would delete ${visible(path)}\n`);
    const planned = { files: copied.length, bytes, unchanged, deleted: gone.length };
    return { ...planned, failed: attempts.failed };
  }
  progress.expect({ files: copied.length, bytes });
  const counter = new Counter(progress);
  if (transfer.direction === 'down') await makeDirectories(here);
  await forEachOf(copied, jobs, (path) =>
    attempts.of(path, async () => {
      const file = local.files.get(path);
      const entry = listed.files.get(path);
      if (transfer.direction === 'up' && file !== undefined) {
        const content = contentOf(pathBelow(here, path), file.size, counter.countBytes);
        await remote.write(joinPath(there, path), content, file.mode);
        counter.countFile();
      } else if (entry !== undefined) await download(entry, here, counter);
    }),
  );
  let deleted = 0;
  await forEachOf(gone, jobs, (path) =>
    attempts.of(path, async () => {
      if (transfer.direction === 'up') await remote.remove(joinPath(there, path));
      else await rm(pathBelow(here, path));
      deleted += 1;
    }),
  );
  return { ...counter.tally, unchanged, deleted, failed: attempts.failed };
}
