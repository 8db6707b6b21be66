import { isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';
import { createReadStream, rmSync } from 'node:fs';
import { lstat, mkdir, open, readdir, readFile, rename, rm, stat, utimes } from 'node:fs/promises';
import { dirname, join, sep } from 'node:path';
import type { FileContent, FilePath } from '@berth/sdk';
import { Failure } from '../failure.ts';
import { visible } from '../text.ts';

/** Something below a local directory. */
export interface LocalEntry {
  /** From the directory, with slashes. */
  readonly path: string;
  readonly type: 'file' | 'directory';
  readonly size: number;
  readonly modifiedMs: number;
  readonly mode: number;
}

/** A path here; bytes where it is not UTF-8. */
type LocalPath = string | Buffer;

/** Is told of entries that a walk leaves out, with everything below them. */
export interface LeftOut {
  /** Neither file nor directory: links, sockets. */
  skipped(path: string): void;
  /** An entry that cannot be looked at. */
  failed(path: string, error: Error): void;
}

/** Downloads that are not complete, and that nothing else takes for files of the user's. */
const PARTIAL_PREFIX = '.berth-partial-';
/** Smaller files are sent from memory. */
const STREAMED_FROM_BYTES = 1024 * 1024;
const PERMISSIONS = 0o777;

const asPath = (path: string): string => (sep === '/' ? path : path.replaceAll(sep, '/'));

/**
 * Everything below a directory, a directory before what is in it.
 * @throws Error when the directory itself cannot be listed
 */
export async function* walk(
  directory: string,
  leftOut: LeftOut,
  prefix = '',
): AsyncGenerator<LocalEntry, void, undefined> {
  const options = { withFileTypes: true, encoding: 'buffer' } as const;
  for (const entry of await readdir(join(directory, prefix), options)) {
    const name = entry.name.toString();
    if (name.startsWith(PARTIAL_PREFIX)) continue;
    const path = asPath(join(prefix, name));
    if (!entry.isFile() && !entry.isDirectory()) {
      leftOut.skipped(path);
      continue;
    }
    try {
      if (!isUtf8(entry.name)) throw new Error('its name is not UTF-8');
      yield await describe(directory, path, entry.isDirectory());
      if (entry.isDirectory()) yield* walk(directory, leftOut, path);
    } catch (error) {
      leftOut.failed(path, error as Error);
    }
  }
}

async function describe(
  directory: string,
  path: string,
  isDirectory: boolean,
): Promise<LocalEntry> {
  const { size, mtimeMs, mode } = await stat(join(directory, path));
  const type = isDirectory ? 'directory' : 'file';
  return { path, type, size, modifiedMs: mtimeMs, mode: mode & PERMISSIONS };
}

/** The type of a local path; undefined: nothing. @throws Error when it cannot be looked at */
export async function lookAt(path: string): Promise<LocalEntry | undefined> {
  try {
    const found = await stat(path);
    const type = found.isDirectory() ? 'directory' : 'file';
    const { size, mtimeMs, mode } = found;
    return { path: '', type, size, modifiedMs: mtimeMs, mode: mode & PERMISSIONS };
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return undefined;
    throw error;
  }
}

/**
 * The content of a file, for each attempt anew.
 * @param sent is told how many bytes have gone; bytes that go again in a later attempt count once
 */
export function contentOf(path: string, size: number, sent: (bytes: number) => void): FileContent {
  let gone = 0;
  const sentTo = (end: number): void => {
    if (end <= gone) return;
    sent(end - gone);
    gone = end;
  };
  if (size >= STREAMED_FROM_BYTES) {
    return () => {
      let end = 0;
      return counted(createReadStream(path), (bytes) => sentTo((end += bytes)));
    };
  }
  return async () => {
    const bytes = await readFile(path);
    sentTo(bytes.length);
    return bytes;
  };
}

/** Passes pieces on, and tells how many bytes they have. */
export async function* counted(
  pieces: AsyncIterable<unknown>,
  count: (bytes: number) => void,
): AsyncGenerator<Uint8Array, void, undefined> {
  for await (const piece of pieces) {
    count((piece as Uint8Array).length);
    yield piece as Uint8Array;
  }
}

/** A local file that a download writes. */
export interface Written {
  readonly mode: number | undefined;
  /** The file gets this time, by which a later sync knows it again. */
  readonly modifiedAt?: Date | undefined;
}

/**
 * Writes a file under another name first: whoever looks sees the old file or all of the new one.
 */
export async function writeFileWhole(
  path: LocalPath,
  pieces: AsyncIterable<Uint8Array>,
  { mode, modifiedAt }: Written,
): Promise<void> {
  const partial = entryOf(parentOf(path), `${PARTIAL_PREFIX}${process.pid}-${(made += 1)}`);
  cleanUpAtEnd();
  partials.add(partial);
  const file = await open(partial, 'wx', mode ?? 0o666);
  try {
    try {
      for await (const piece of pieces) await file.writeFile(piece);
      if (mode !== undefined) await file.chmod(mode);
    } finally {
      await file.close();
    }
    if (modifiedAt !== undefined) await utimes(partial, modifiedAt, modifiedAt);
    await rename(partial, path);
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  } finally {
    partials.delete(partial);
  }
}

/** Those that are being written. */
const partials = new Set<LocalPath>();
let made = 0;
const SIGNALS = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129 } as const;

/** Ctrl-C leaves no partial files. */
function cleanUpAtEnd(): void {
  if (made > 1) return; // The clean-up is prepared already.
  process.once('exit', () => {
    for (const partial of partials) rmSync(partial, { force: true });
  });
  for (const [signal, code] of Object.entries(SIGNALS))
    process.once(signal, () => process.exit(code));
}

/**
 * Where something of a remote listing comes to lie. Names come from others: they must not lead out
 * of the directory.
 * @throws Failure when they do
 */
export function pathBelow(directory: string, path: string): string;
export function pathBelow(directory: string, path: FilePath): LocalPath;
export function pathBelow(directory: string, path: FilePath): LocalPath {
  // Latin-1 has a character for each byte.
  const text = typeof path === 'string' ? path : Buffer.from(path).toString('latin1');
  const isHarmless = text
    .split('/')
    .every((name) => name !== '' && name !== '.' && name !== '..' && !name.includes('\0'));
  if (isHarmless) {
    return typeof path === 'string' ? join(directory, path) : entryOf(join(directory, '.'), path);
  }
  throw new Failure(
    `the name ${JSON.stringify(text)} leads out of the directory`,
    'it was not copied',
  );
}

const entryOf = (directory: LocalPath, name: FilePath): LocalPath =>
  typeof directory === 'string' && typeof name === 'string'
    ? join(directory, name)
    : Buffer.concat([Buffer.from(directory), Buffer.from('/'), Buffer.from(name)]);

/** The directory that something lies in. */
const parentOf = (path: LocalPath): LocalPath =>
  typeof path === 'string' ? dirname(path) : path.subarray(0, path.lastIndexOf('/'));

/** Makes the directory that a caller has named. */
export const makeDirectories = async (path: string): Promise<void> => {
  await mkdir(path, { recursive: true });
};

/**
 * Makes directories below one that the caller has named, unless they are there. A link in their
 * place is not followed: it may lead anywhere, and the names come from others.
 * @param path of the innermost one, from `directory`; empty: `directory` itself
 * @throws Failure when something else is in the place of one
 */
export async function makeDirectoriesBelow(directory: string, path: FilePath): Promise<void> {
  await makeDirectories(directory);
  if (path.length === 0) return;
  const names =
    typeof path === 'string'
      ? path.split('/')
      : Buffer.from(path)
          .toString('latin1')
          .split('/')
          .map((name) => Buffer.from(name, 'latin1'));
  let at: LocalPath = directory;
  for (const name of names) {
    at = entryOf(at, name);
    await mkdir(at).catch(ignoreExisting);
    if ((await lstat(at)).isDirectory()) continue;
    throw new Failure(
      `${visible(String(at))} is a link or a file, where a directory is needed`,
      'move it away; links are not followed',
    );
  }
}

const ignoreExisting = (error: NodeJS.ErrnoException): void => {
  if (error.code !== 'EEXIST') throw error;
};

/** The directory that something lies in; empty: the one that its path begins in. */
export function parentPath(path: FilePath): FilePath {
  if (typeof path === 'string') return path.slice(0, Math.max(0, path.lastIndexOf('/')));
  const bytes = Buffer.from(path);
  return bytes.subarray(0, Math.max(0, bytes.lastIndexOf('/')));
}

/** The MD5 of a file in hex, as the object API shows it. */
export async function md5Of(path: string, size: number): Promise<string> {
  const hash = createHash('md5');
  if (size < STREAMED_FROM_BYTES) return hash.update(await readFile(path)).digest('hex');
  for await (const piece of createReadStream(path)) hash.update(piece as Uint8Array);
  return hash.digest('hex');
}
