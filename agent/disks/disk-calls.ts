import {
  close,
  fchmod,
  fchown,
  closeSync,
  fdatasync,
  fstat,
  fstatSync,
  fsync,
  ftruncate,
  open,
  read,
  writeFile,
} from 'node:fs';
import * as promises from 'node:fs/promises';
import { promisify } from 'node:util';
import { DISK_LIMITS } from './limits.ts';
import { type DirectoryPage, native } from '../native/native.ts';
import { onDiskThread, toItsEnd } from './disk-threads.ts';
import { MiB } from '../../shared/units.ts';

/*
 * System calls on the contents of disks. Each call waits for a thread from its account's share, and
 * none starts for a request that has ended (disk-threads.ts). A lint rule keeps code that works on
 * disks from using other file system calls.
 */

type AsyncCall = (...args: never[]) => Promise<unknown>;

/** Wraps a call so that it takes a thread of the share; the overloads are kept. */
const shared = <F extends AsyncCall>(call: F): F =>
  ((...args) => onDiskThread(() => call(...args))) as F;

type Native = typeof native;

const sharedNative = <Name extends keyof Native>(name: Name): Native[Name] =>
  shared(native[name] as AsyncCall) as Native[Name];

export const chmod = shared(promises.chmod);
export const chown = shared(promises.chown);
export const link = shared(promises.link);
export const lstat = shared(promises.lstat);
export const mkdir = shared(promises.mkdir);
export const readdir = shared(promises.readdir);
export const readLink = shared(promises.readlink);
export const readFile = shared(promises.readFile);
export const rename = shared(promises.rename);
export const rm = shared(promises.rm);
export const rmdir = shared(promises.rmdir);
export const stat = shared(promises.stat);
export const unlink = shared(promises.unlink);

/* Node offers promises for FileHandle only; descriptors that the addon opened need these. */
export const openFile = shared(promisify(open));
export const writeText = shared(promisify(writeFile));
export const statFile = shared(promisify(fstat));
export const syncFile = shared(promisify(fsync));
export const syncData = shared(promisify(fdatasync));
export const truncateFile = shared(promisify(ftruncate));
export const changeMode = shared(promisify(fchmod));
export const changeOwner = shared(promisify(fchown));
export const readBytes = shared(promisify(read));

export const openBeneath = sharedNative('openBeneath');
export const openWithAttribute = sharedNative('openObject');
export const walkFiles = sharedNative('walkFiles');
export const attachDirectory = sharedNative('attach');
export const writeChunks = sharedNative('write');
export const beginWriteBack = sharedNative('writeBack');
export const copyRange = sharedNative('copyRange');
export const getAttribute = sharedNative('getAttribute');
export const setAttribute = sharedNative('setAttribute');
export const addToMd5 = sharedNative('addToMd5');
export const addToCrc = sharedNative('addToCrc');
export const combineCrcs = sharedNative('combineCrcs');
/* These do no I/O and need no thread. */
export const newMd5 = (): Buffer => native.newMd5();
export const digestMd5 = (state: Buffer): Buffer => native.digestMd5(state);
export const newCrc = (kind: number): Buffer => native.newCrc(kind);
export const addToCrcNow = (state: Buffer, chunks: readonly Buffer[]): void =>
  native.addToCrcNow(state, chunks);
export const digestCrc = (state: Buffer): bigint => native.digestCrc(state);

/** Closes a descriptor, even when the request that opened it has ended. */
export const closeFile = (fd: number): Promise<void> =>
  toItsEnd(() => onDiskThread(() => promisify(close)(fd)));

/** A deleted file up to this size may be closed on the main thread: freeing its blocks is quick. */
const QUICKLY_FREED_BYTES = 64 * MiB;
const BLOCK_BYTES = 512; // The unit of stat(2).

/**
 * Closes a file that was only read. Large files are closed on a disk thread, since closing the last
 * descriptor of a deleted file frees its blocks.
 */
export async function closeReadFile(fd: number): Promise<void> {
  if (fstatSync(fd).blocks * BLOCK_BYTES <= QUICKLY_FREED_BYTES) closeSync(fd);
  else await closeFile(fd);
}

/**
 * Reads one page of a directory, in slices of {@link DISK_LIMITS.listingSliceMs}; see
 * listing-calls.c.
 */
export async function listDirectory(
  ...request: Parameters<typeof native.newListing>
): Promise<DirectoryPage> {
  const listing = native.newListing(...request);
  try {
    for (;;) {
      const page = await onDiskThread(() =>
        native.readListing(listing, DISK_LIMITS.listingSliceMs),
      );
      if (page !== undefined) return page;
    }
  } finally {
    native.closeListing(listing);
  }
}
