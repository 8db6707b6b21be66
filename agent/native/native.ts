import { createRequire } from 'node:module';

/** A name of a directory, and the object's attributes if it is a file. */
export type DirectoryEntry =
  | { readonly name: string; readonly isDirectory: true }
  | ({ readonly name: string; readonly isDirectory: false } & FileIdentity & {
        readonly record?: Buffer;
      });

/** Values that change whenever the contents of a file do. */
export interface FileIdentity {
  readonly sizeBytes: number;
  readonly inode: bigint;
  readonly mtimeNs: bigint;
  readonly ctimeNs: bigint;
}

export interface DirectoryPage {
  readonly entries: DirectoryEntry[];
  /** Where the next page goes on; undefined when there is none. */
  readonly after?: Buffer;
}

/** A page of a directory while it is read; see listing-calls.c. */
interface Listing {
  readonly kind: unique symbol;
}

/** The file that a process maps as its RAM, as fstat(2) names it. */
export interface RamMapping {
  readonly device: bigint;
  readonly inode: bigint;
  readonly sizeBytes: number;
}

interface NativeModule {
  mount(source: string, target: string, type: string, flags: number, data: string): Promise<void>;
  unmount(target: string, flags: number): Promise<void>;
  attach(
    disk: string,
    subdirectory: string,
    target: string,
    attributes: number,
    userNamespace: number,
  ): Promise<void>;
  newUserNamespace(owner: number, mapping: string): Promise<number>;
  setHostname(pid: number, name: string): Promise<void>;
  listenTransparent(port: number): number;
  forbidDumps(): void;
  connectInNamespace(namespace: string, address: string, port: number): Promise<number>;
  listenInNamespace(namespace: string, address: string, port: number): Promise<number>;
  makeDevices(directory: string, owner: number): Promise<void>;
  pipe(): [readFd: number, writeFd: number];
  socketPair(): [fd: number, fd: number];
  spawn(
    path: string,
    args: readonly string[],
    environment: readonly string[],
    descriptors: readonly number[],
  ): Promise<number>;
  reap(pid: number): number | undefined;
  unreadBytes(fd: number): number;
  openBeneath(root: string, path: string, flags: number): Promise<number>;
  openObject(
    root: string,
    path: string,
    flags: number,
    attribute: string,
    contentMax: number,
  ): Promise<Buffer>;
  write(fd: number, offset: number, chunks: readonly Buffer[]): Promise<void>;
  writeBack(fd: number, offset: number, length: number): Promise<void>;
  copyRange(
    from: number,
    to: number,
    fromOffset: number,
    toOffset: number,
    length: number,
  ): Promise<number>;
  getAttribute(fd: number, name: string): Promise<Buffer | undefined>;
  setAttribute(fd: number, name: string, value: Buffer): Promise<void>;
  setTimes(fd: number, timeNs: bigint): Promise<void>;
  takeDescriptor(pid: number, fd: number): number;
  removeAttribute(fd: number, name: string): Promise<void>;
  inodeHasAttribute(root: string, inode: number, name: string): Promise<boolean>;
  giveUpContents(
    fd: number,
    name: string,
    mtimeNs: bigint,
    ctimeNs: bigint,
    fanotifyGroup: number,
  ): Promise<boolean>;
  isOpenElsewhere(fd: number): Promise<boolean>;
  watchChanges(directory: string): number;
  takeChanges(fanotifyGroup: number): boolean;
  punch(fd: number, length: number): Promise<void>;
  syncFileSystem(root: string): Promise<void>;
  walkFiles(root: string, filesMax: number, bytesMax: number): Promise<Buffer>;
  newMd5(): Buffer;
  addToMd5(state: Buffer, chunks: readonly Buffer[]): Promise<void>;
  digestMd5(state: Buffer): Buffer;
  newCrc(kind: number): Buffer;
  addToCrc(state: Buffer, chunks: readonly Buffer[]): Promise<void>;
  addToCrcNow(state: Buffer, chunks: readonly Buffer[]): void;
  digestCrc(state: Buffer): bigint;
  combineCrcs(kind: number, crcs: Buffer, lengths: Buffer): Promise<bigint>;
  newListing(
    root: string,
    path: string,
    prefix: Buffer,
    after: Buffer,
    limit: number,
    attribute: string,
  ): Listing;
  readListing(listing: Listing, milliseconds: number): Promise<DirectoryPage | undefined>;
  closeListing(listing: Listing): void;
  takeLock(path: string): Promise<number>;
  trimMemory(): void;
  newMemory(name: string, sizeBytes: number): number;
  sealMemory(fd: number): void;
  isSealed(fd: number): boolean;
  copyMemory(from: number, to: number, sizeBytes: number): Promise<bigint>;
  saveChangedPages(
    pid: number,
    mapping: RamMapping,
    template: number,
    out: number,
    key: Buffer,
  ): Promise<number>;
  loadChangedPages(pid: number, mapping: RamMapping, from: number, key: Buffer): Promise<number>;
}

const loaded: unknown = createRequire(import.meta.url)('./build/native.node');

/**
 * System calls and digests that Node lacks; mounts.c, container.c, descriptors.c, digest-calls.c,
 * egress.c, files.c, listing-calls.c, lock-calls.c, memory.c, namespaces.c, object.c, programs.c
 * and ram.c of addon/ describe them.
 */
export const native = loaded as NativeModule;

/**
 * A root file system with nothing but the programs that containers see at `/.berth`: init.c,
 * search.c, and rg and grep with their libraries.
 */
export const toolsRoot = new URL('build/root', import.meta.url).pathname;

/** Unmounts the disks when the agent is gone; see guard.c. */
export const guardPath = new URL('build/guard', import.meta.url).pathname;

/** Starts programs that end with the agent; see leash.c. */
export const leashPath = new URL('build/leash', import.meta.url).pathname;

/** Attaches and detaches disks; see disk.c. */
export const diskProgramPath = new URL('build/disk', import.meta.url).pathname;

/**
 * Loaded into QEMU, so that the holes of a template cost nothing when they are used; see holes.c.
 */
export const holesPath = new URL('build/holes.so', import.meta.url).pathname;

/** Starts a virtual machine and stays with it, whatever becomes of the agent; see shim.c. */
export const shimPath = new URL('build/shim', import.meta.url).pathname;

/** Starts the container of a sandbox and stays with it; see container-shim.c. */
export const containerShimPath = new URL('build/container-shim', import.meta.url).pathname;

/** Makes opens of placeholders wait until they are filled; see hydrate.c. */
export const hydratePath = new URL('build/hydrate', import.meta.url).pathname;

/** Mounts disks in a container that runs; see mount-disks.c. */
export const mountDisksPath = new URL('build/mount-disks', import.meta.url).pathname;

/** Serves disks to a virtual machine; see serve-disks.c. */
export const serveDisksPath = new URL('build/serve-disks', import.meta.url).pathname;

/** Loaded into the NFS server before its libraries: seal-handles.c and wal-locks.c. */
export const nfsPreloadPath = new URL('build/nfs-preload.so', import.meta.url).pathname;

/** The guest agent, as containers of sandboxes have it; see agent/guest/main.c. */
export const guestPath = new URL('../guest/build/guest', import.meta.url).pathname;

/** Flags of mount(2), from linux/mount.h. */
export const MountFlag = {
  nosuid: 2,
  nodev: 4,
  noexec: 8,
  bind: 4096,
  recursive: 16_384,
  private: 1 << 18,
  shared: 1 << 20,
} as const;
/** Attributes of mount_setattr(2), from linux/mount.h. */
export const MountAttribute = { readOnly: 1, noExec: 8, noSymlinkFollow: 0x20_0000 } as const;
/** Flags of umount2(2): `MNT_DETACH`. */
export const UnmountFlag = { detach: 2 } as const;
