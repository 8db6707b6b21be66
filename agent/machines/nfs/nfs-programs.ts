import { copyFile, cp, mkdir, rm, symlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { native, nfsPreloadPath, UnmountFlag } from '../../native/native.ts';
import { mountsBelow } from '../../system/mount-table.ts';
import { paths } from '../../system/paths.ts';
import { run } from '../../system/spawn.ts';
import { MiB } from '../../../shared/units.ts';

const SERVER = '/usr/bin/ganesha.nfsd';
/** Debian has it in the directory of its processor type. */
const PLUGINS = 'ganesha/libfsalvfs.so';
const LIBRARIES = { x64: '/usr/lib/x86_64-linux-gnu', arm64: '/usr/lib/aarch64-linux-gnu' };
const BYTES_MAX = 64 * MiB;
const EMPTY = ['dev', 'disks', 'etc', 'run', 'var'];
/** Directories that the server writes to at its start; only this is writable. */
const IN_RUN = ['tmp', 'var/run'];

const libraries = process.arch === 'arm64' ? LIBRARIES.arm64 : LIBRARIES.x64;
/** Where the server finds how it reaches file systems of the host's kernel. */
export const pluginsDir = dirname(join(libraries, PLUGINS));

/** The libraries that programs need, with the loader. */
async function librariesOf(programs: readonly string[]): Promise<string[]> {
  const printed = await run('ldd', [...programs]);
  return [...new Set([...printed.matchAll(/(\/\S+) \(0x/gu)].map(([, path = '']) => path))];
}

/**
 * Puts the NFS server and its libraries into a file system in memory, which servers have as their
 * root: they open files by handles, and a handle leads anywhere in the file system that it is of.
 * @returns its directory
 * @throws Error when nfs-ganesha is not installed
 */
export async function provideNfsPrograms(dataDir: string): Promise<string> {
  const providing = (provided ??= provide(dataDir, paths.nfsPrograms(dataDir)));
  try {
    return await providing;
  } catch (error) {
    provided = undefined; // The next sandbox tries again.
    throw error;
  }
}

/** Once for each agent: guard or reclaim unmount what the former one had. */
let provided: Promise<string> | undefined;

async function provide(dataDir: string, root: string): Promise<string> {
  // Servers of a former agent may have it as their root: it is taken away, not emptied.
  if ((await mountsBelow(dataDir)).includes(root)) await native.unmount(root, UnmountFlag.detach);
  await rm(root, { recursive: true, force: true });
  await mkdir(root, { mode: 0o755 });
  await native.mount('tmpfs', root, 'tmpfs', 0, `size=${BYTES_MAX},mode=755`);
  try {
    for (const name of EMPTY) await mkdir(join(root, name));
    const programs = [SERVER, join(libraries, PLUGINS)];
    for (const path of [...programs, ...(await librariesOf(programs))]) {
      await mkdir(dirname(join(root, path)), { recursive: true });
      await copyFile(path, join(root, path));
    }
    await copyFile(nfsPreloadPath, join(root, 'nfs-preload.so'));
    await cp('/etc/netconfig', join(root, 'etc/netconfig'));
    for (const name of IN_RUN) await symlink('/run', join(root, name));
    await symlink('/run/mtab', join(root, 'etc/mtab'));
  } catch (error) {
    await native.unmount(root, 0);
    throw error;
  }
  return root;
}
