import { Failure } from '../failure.ts';
import type { Output } from '../output.ts';
import type { Progress } from '../progress.ts';
import { visible } from '../text.ts';
import { writeTo } from '../process-io.ts';
import { Attempts, type FailedFile } from './attempts.ts';
import {
  contentOf,
  counted,
  lookAt,
  makeDirectories,
  makeDirectoriesBelow,
  parentPath,
  pathBelow,
  walk,
  writeFileWhole,
} from './local-files.ts';
import { basename, resolve } from 'node:path';
import {
  baseName,
  isNamedAsDirectory,
  joinPath,
  nothingAt,
  orNothingAt,
  type Transfer,
} from './place.ts';
import { forEachOf } from './pool.ts';
import type { RemoteEntry, RemoteFiles } from './remote-files.ts';

/** Counts of a transfer. */
export interface Tally {
  readonly files: number;
  readonly bytes: number;
}

/** Counts of a transfer in which some files may have failed. */
export interface CopyTally extends Tally {
  readonly failed: readonly FailedFile[];
}

/** Counts files and bytes, and shows the progress meanwhile. */
export class Counter {
  readonly progress: Progress;
  files = 0;
  bytes = 0;

  constructor(progress: Progress) {
    this.progress = progress;
  }

  readonly countBytes = (bytes: number): void => {
    this.bytes += bytes;
    this.progress.addBytes(bytes);
  };

  countFile(): void {
    this.files += 1;
    this.progress.addFile();
  }

  get tally(): Tally {
    return { files: this.files, bytes: this.bytes };
  }
}

/** Options of `cp`. */
export interface CopyOptions {
  readonly remote: RemoteFiles;
  readonly output: Output;
  readonly jobs: number;
}

interface Run extends CopyOptions {
  readonly counter: Counter;
  readonly attempts: Attempts;
}

/**
 * Copies a file, or a directory with everything in it; a file in it that fails does not keep the
 * others.
 * @throws Failure when there is nothing to copy
 */
export async function copy(transfer: Transfer, options: CopyOptions): Promise<CopyTally> {
  using progress = options.output.progress('copying');
  const run = { ...options, counter: new Counter(progress), attempts: new Attempts() };
  if (transfer.direction === 'up') await copyUp(transfer, run);
  else await copyDown(transfer, run);
  return { ...run.counter.tally, failed: run.attempts.failed };
}

/**
 * A source that is copied into an existing directory, or one named as such, keeps its name there.
 */
async function targetOf(remote: RemoteFiles, path: string, name: string): Promise<string> {
  const isDirectory = isNamedAsDirectory(path) || (await remote.typeOf(path)) === 'directory';
  return isDirectory && name !== '' ? joinPath(path, name) : path;
}

async function copyUp(
  { from, to }: Transfer & { readonly direction: 'up' },
  { remote, output, jobs, counter, attempts }: Run,
): Promise<void> {
  if (from.kind === 'standard') {
    if (isNamedAsDirectory(to.path)) {
      throw new Failure('stdin has no name', 'end the target with the name of the file');
    }
    await remote.write(to.path, counted(process.stdin, counter.countBytes), undefined);
    return counter.countFile();
  }
  const found = await lookAt(from.path);
  if (found === undefined) throw nothingAt(from.path);
  // `dir/.` stands for the directory's contents, as with docker and rsync.
  const isContents = /(?:^|\/)\.\/?$/u.test(from.path);
  const target = await targetOf(remote, to.path, isContents ? '' : basename(resolve(from.path)));
  if (found.type === 'file') {
    await remote.write(target, contentOf(from.path, found.size, counter.countBytes), found.mode);
    return counter.countFile();
  }
  const skipped: string[] = [];
  await remote.makeDirectory(target);
  const entries = walk(from.path, {
    skipped: (path) => skipped.push(path),
    failed: attempts.note,
  });
  await forEachOf(entries, jobs, ({ path, type, size, mode }) =>
    attempts.of(path, async () => {
      if (type === 'directory') return remote.makeDirectory(joinPath(target, path));
      const local = pathBelow(from.path, path);
      await remote.write(joinPath(target, path), contentOf(local, size, counter.countBytes), mode);
      counter.countFile();
    }),
  );
  noteSkipped(output, skipped);
}

/** Links are not followed: they may lead anywhere. */
export function noteSkipped(output: Output, skipped: readonly string[]): void {
  if (skipped.length === 0) return;
  const shown = skipped.slice(0, 3).map(visible).join(', ');
  const more = skipped.length > 3 ? ` and ${skipped.length - 3} more` : '';
  output.note(`skipped, because they are links or no files: ${shown}${more}`);
}

async function copyDown(
  { from, to }: Transfer & { readonly direction: 'down' },
  { remote, output, jobs, counter, attempts }: Run,
): Promise<void> {
  if (to.kind === 'standard') {
    for await (const piece of await orNothingAt(from, remote.read(from.path))) {
      counter.countBytes(piece.length);
      await writeTo(process.stdout, piece);
    }
    return counter.countFile();
  }
  const type = await remote.typeOf(from.path);
  if (type === undefined) throw nothingAt(`${from.name}:${from.path}`);
  const name = baseName(from.path);
  const isInto = to.path.endsWith('/') || (await lookAt(to.path))?.type === 'directory';
  const isContents = name === '.' || name === '';
  const target = isInto && !isContents ? pathBelow(to.path, name) : to.path;
  if (type !== 'directory') {
    const content = counted(await remote.read(from.path), counter.countBytes);
    await writeFileWhole(target, content, { mode: undefined });
    return counter.countFile();
  }
  const skipped: string[] = [];
  if (target === to.path) await makeDirectories(target);
  else await makeDirectoriesBelow(to.path, name);
  await forEachOf(remote.list(from.path), jobs, async (entry) => {
    if (entry.type === 'other') skipped.push(entry.path);
    else await attempts.of(entry.path, () => download(entry, target, counter));
  });
  noteSkipped(output, skipped);
}

/** Downloads one entry of a listing into a local directory. */
export async function download(
  { path, bytes, type, mode, modifiedAt, read }: RemoteEntry,
  target: string,
  counter: Counter,
): Promise<void> {
  const name = bytes ?? path;
  const local = pathBelow(target, name);
  if (type === 'directory') return makeDirectoriesBelow(target, name);
  await makeDirectoriesBelow(target, parentPath(name));
  const content = counted(await read(), counter.countBytes);
  await writeFileWhole(local, content, { mode, modifiedAt });
  counter.countFile();
}
