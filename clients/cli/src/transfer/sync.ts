import { rm } from 'node:fs/promises';
import { type BerthError } from '@berth/sdk';
import { Failure } from '../failure.ts';
import type { Output } from '../output.ts';
import { visible } from '../text.ts';
import { Counter, download, noteSkipped, type Tally } from './copy.ts';
import {
  contentOf,
  type LocalEntry,
  lookAt,
  makeDirectories,
  md5Of,
  pathBelow,
  walk,
} from './local-files.ts';
import { joinPath, nothingAt, type Transfer } from './place.ts';
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
export interface SyncTally extends Tally {
  /** How many files were the same on both sides. */
  readonly unchanged: number;
  readonly deleted: number;
  readonly failed: readonly { readonly path: string; readonly error: string }[];
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
  readonly deleted: string[];
  unchanged: number;
}

async function listLocal(directory: string, output: Output): Promise<Listing<LocalEntry>> {
  const files = new Map<string, LocalEntry>();
  const leftOut = new Set<string>();
  if ((await lookAt(directory)) === undefined) return { files, leftOut };
  for await (const entry of walk(directory, (path) => leftOut.add(path))) {
    if (entry.type === 'file') files.set(entry.path, entry);
  }
  noteSkipped(output, [...leftOut]);
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
 * Files of the target that the source does not have. A file at or below a path that the source's listing left
 * out is none: there is something in the source, such as a link in place of a directory.
 */
function filesGone(source: Listing<unknown>, target: Listing<unknown>): string[] {
  return [...target.files.keys()].filter(
    (path) => !source.files.has(path) && !isWithin(path, source.leftOut),
  );
}

const MD5_ETAG = /^"([\da-f]{32})"$/u;

/**
 * Whether both sides have the same file. A download leaves the remote time on the local file; after an upload
 * the MD5 decides, which is then the ETag. "Older than the upload" would not do: a file may have been moved into
 * place with its old time.
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
): Promise<Plan> {
  const [source, target] = direction === 'up' ? [local, remote] : [remote, local];
  const gone = deletes ? filesGone(source, target) : [];
  const plan: Plan = { copied: [], deleted: gone, unchanged: 0 };
  await forEachOf(source.files.keys(), jobs, async (path) => {
    if (await isSame(directory, local.files.get(path), remote.files.get(path))) plan.unchanged += 1;
    else plan.copied.push(path);
  });
  return plan;
}

/** Does the work for each path; a failure of one does not stop the others. */
class Attempts {
  readonly failed: { path: string; error: string }[] = [];

  async of(path: string, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      const { code } = error as BerthError;
      // Every other file would fail the same way.
      if (code === 'connection_failed' || code === 'unauthorized') throw error;
      this.failed.push({ path, error: (error as Error).message });
    }
  }
}

/**
 * With `--delete`, a source that is not there would empty the target.
 * @throws Failure unless the source is a directory
 */
async function requireSource({ direction, from }: Transfer, remote: RemoteFiles): Promise<void> {
  if (from.kind === 'standard') {
    throw new Failure('- is no directory', 'berth disk cp copies stdin and stdout');
  }
  const [path, type] =
    direction === 'up'
      ? [from.path, (await lookAt(from.path))?.type]
      : [`${from.name}:${from.path}`, await remote.typeOf(from.path)];
  if (type === undefined) throw nothingAt(path);
  if (type === 'directory') return;
  throw new Failure(`${visible(path)} is not a directory`, 'berth disk cp copies files');
}

/** Makes a directory of a disk like a local one, or the other way round. */
export async function sync(transfer: Transfer, options: SyncOptions): Promise<SyncTally> {
  const { remote, output, jobs, isDry } = options;
  const { from, to } = transfer;
  if (from.kind === 'standard' || to.kind === 'standard') {
    throw new Failure('- is no directory', 'berth disk cp copies stdin and stdout');
  }
  const [here, there] = transfer.direction === 'up' ? [from.path, to.path] : [to.path, from.path];
  await requireSource(transfer, remote);
  using progress = output.progress('comparing');
  const [local, listed] = await Promise.all([listLocal(here, output), listRemote(remote, there)]);
  const plan = await makePlan(here, transfer, local, listed, options);
  const { copied, deleted, unchanged } = plan;
  const source: Listing<{ readonly size: number }> = transfer.direction === 'up' ? local : listed;
  const bytes = copied.reduce((sum, path) => sum + (source.files.get(path)?.size ?? 0), 0);
  if (isDry) {
    for (const path of copied) output.text(output.isJson ? '' : `would copy ${visible(path)}\n`);
    for (const path of deleted) output.text(output.isJson ? '' : `would delete ${visible(path)}\n`);
    return { files: copied.length, bytes, unchanged, deleted: deleted.length, failed: [] };
  }
  progress.expect({ files: copied.length, bytes });
  const counter = new Counter(progress);
  const attempts = new Attempts();
  if (transfer.direction === 'down') await makeDirectories(here);
  await forEachOf(copied, jobs, (path) =>
    attempts.of(path, async () => {
      const file = local.files.get(path);
      const entry = listed.files.get(path);
      if (transfer.direction === 'up' && file !== undefined) {
        const content = contentOf(pathBelow(here, path), file.size, counter.countBytes);
        await remote.write(joinPath(there, path), content, file.mode);
        counter.countFile();
      } else if (entry !== undefined) await download(remote, there, entry, here, counter);
    }),
  );
  await forEachOf(deleted, jobs, (path) =>
    attempts.of(path, async () => {
      if (transfer.direction === 'up') await remote.remove(joinPath(there, path));
      else await rm(pathBelow(here, path));
    }),
  );
  return { ...counter.tally, unchanged, deleted: deleted.length, failed: attempts.failed };
}
