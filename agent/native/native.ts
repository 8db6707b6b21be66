import { createRequire } from 'node:module';

interface NativeModule {
  mount(source: string, target: string, type: string, flags: number, data: string): Promise<void>;
  unmount(target: string, flags: number): Promise<void>;
  attach(disk: string, subdirectory: string, target: string, attributes: number): Promise<void>;
  inode(disk: string, path: string): Promise<number>;
  openFile(disk: string, path: string): Promise<number>;
  pipe(): [readFd: number, writeFd: number];
  unreadBytes(fd: number): number;
}

const loaded: unknown = createRequire(import.meta.url)('./build/native.node');

/** System calls that Node lacks; see addon.c. */
export const native = loaded as NativeModule;

/** Programs that containers see at `/.berth`: init.c, search.c, and rg with its libraries. */
export const toolsPath = new URL('build/tools', import.meta.url).pathname;

/** Unmounts the disks when the agent is gone; see guard.c. */
export const guardPath = new URL('build/guard', import.meta.url).pathname;

/** Flags of mount(2) and umount2(2), from linux/mount.h. */
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
export const UnmountFlag = { detach: 2 } as const;
