import { chmod, mkdir, open, statfs, truncate } from 'node:fs/promises';
import { MiB } from '../../shared/units.ts';
import { isImageFree, mountImage, unmountImage } from '../disks/mount.ts';
import type { HostGroups } from '../system/helper-group.ts';
import { ProgramError, run } from '../system/spawn.ts';
import { runConfined } from './confined-tool.ts';
import { ImageFailure } from './image-source.ts';
import { LAYOUT_TAG } from './oci-layout.ts';
import { tooLarge } from './oci-manifest.ts';

const MEMORY_BYTES_MAX = 1024 * MiB;
const PROCESSES_MAX = 128;
const LOOK_MS = 200;
const SYNC_MS_MAX = 300_000;
/** Owns the blocks that no image may use; nobody else has this id. */
const RESERVED_UID = 65_533; // The field has 16 bits.
/** Blocks that ext4 reserves for itself in every mounted file system. */
const KERNEL_BLOCKS = 4096;
/** Capabilities that umoci needs to give files the owners and modes that layers state. */
const CAPABILITIES = ['CHOWN', 'DAC_OVERRIDE', 'FOWNER', 'FSETID', 'MKNOD', 'SETFCAP'].map(
  (name) => `CAP_${name}`,
);

export interface ImageDiskSpec {
  /** The file to make. */
  readonly path: string;
  /** An empty directory, where it is mounted meanwhile. */
  readonly mountPoint: string;
  /** Virtual size. */
  readonly sizeBytes: number;
  /** Bytes of it that the image may take. */
  readonly bytesMax: number;
  readonly firstLoop: number;
}

/**
 * Unpacks the image of a layout into a new ext4 file. Durable when it returns. What the layers
 * unpack to is bounded by the file system itself: all of its other blocks are reserved for a user
 * that does not exist, until it is done.
 * @param onBytes told with the bytes written so far
 * @throws ImageFailure; the signal's reason, also while something keeps the file system in use
 */
export async function makeImageDisk(
  groups: HostGroups,
  layout: string,
  spec: ImageDiskSpec,
  { signal, onBytes }: { signal: AbortSignal; onBytes: (bytes: number) => void },
): Promise<void> {
  const { path, mountPoint, firstLoop, bytesMax } = spec;
  await format(spec);
  await mkdir(mountPoint, { recursive: true, mode: 0o700 });
  await mountImage(path, mountPoint, firstLoop);
  const timer = setInterval(() => {
    statfs(mountPoint).then(
      ({ blocks, bfree, bsize }) => onBytes((blocks - bfree) * bsize),
      () => undefined,
    );
  }, LOOK_MS);
  let isFree = false;
  try {
    await unpack(groups, layout, spec, signal);
    // Here, and not while it is unmounted, where the time is short.
    await run('sync', ['--file-system', mountPoint], { timeoutMs: SYNC_MS_MAX });
  } catch (error) {
    throw error instanceof ProgramError ? explain(error, bytesMax) : error;
  } finally {
    clearInterval(timer);
    ({ isFree } = await unmountImage(path, mountPoint));
  }
  // The kernel writes to it until its last user is gone: a process with a copy of the mount, say.
  while (!isFree) {
    signal.throwIfAborted();
    isFree = await isImageFree(path);
  }
  await releaseBlocks(path);
  await chmod(path, 0o444);
  await run('sync', [path], { timeoutMs: SYNC_MS_MAX });
}

/** Like the default image's (scripts/build-image): one guest's memory serves both. */
async function format({ path, sizeBytes, bytesMax }: ImageDiskSpec): Promise<void> {
  await (await open(path, 'wx', 0o600)).close();
  await truncate(path, sizeBytes);
  const extended =
    'assume_storage_prezeroed=1,lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0';
  const args = ['-q', '-t', 'ext4', '-F', '-L', 'root', '-m', '0', '-e', 'remount-ro'];
  await run('mke2fs', [...args, '-E', extended, path]);
  const described = await run('dumpe2fs', ['-h', path]);
  const figure = (name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+)$`, 'mu').exec(described)?.[1]);
  const usable = Math.ceil(bytesMax / figure('Block size')) + KERNEL_BLOCKS;
  const reserved = Math.max(0, figure('Free blocks') - usable);
  const changes = [
    `ssv r_blocks_count ${reserved}`,
    `ssv def_resuid ${RESERVED_UID}`,
    'rmdir lost+found',
  ];
  await run('debugfs', ['-w', '-f', '-', path], { input: `${changes.join('\n')}\n` });
  // debugfs succeeds whatever becomes of its commands, and this is what bounds the image.
  const changed = await run('dumpe2fs', ['-h', path]);
  const isReserved =
    new RegExp(`^Reserved block count:\\s+${reserved}$`, 'mu').test(changed) &&
    new RegExp(`^Reserved blocks uid:\\s+${RESERVED_UID}\\b`, 'mu').test(changed);
  if (!isReserved) throw new Error(`the blocks of ${path} beyond its bound cannot be reserved`);
}

/** Gives back the reserved blocks. @throws Error when the file system is not whole afterwards */
async function releaseBlocks(path: string): Promise<void> {
  await run('debugfs', ['-w', '-f', '-', path], {
    input: 'ssv r_blocks_count 0\nssv def_resuid 0\n',
  });
  // debugfs succeeds whatever becomes of its commands, and no other build replaces this image.
  const described = await run('dumpe2fs', ['-h', path]);
  const isWhole =
    /^Filesystem state:\s+clean$/mu.test(described) &&
    /^Reserved block count:\s+0$/mu.test(described) &&
    /^Reserved blocks uid:\s+0\b/mu.test(described) &&
    !/^Filesystem features:.*\bneeds_recovery\b/mu.test(described);
  if (!isWhole) throw new Error(`the file system of ${path} is not whole after it was unmounted`);
}

async function unpack(
  groups: HostGroups,
  layout: string,
  { mountPoint, bytesMax }: ImageDiskSpec,
  signal: AbortSignal,
): Promise<void> {
  await runConfined(groups, {
    program: 'umoci',
    args: ['raw', 'unpack', '--image', `/layout:${LAYOUT_TAG}`, '/rootfs'],
    reads: { '/layout': layout },
    writes: { '/rootfs': mountPoint },
    capabilities: CAPABILITIES,
    memoryBytes: MEMORY_BYTES_MAX,
    processes: PROCESSES_MAX,
    fileBytes: bytesMax,
    signal,
  });
}

function explain(error: ProgramError, bytesMax: number): Error {
  if (/no space left|file too large|disk quota/iu.test(error.message)) return tooLarge(bytesMax);
  if (error.wasKilled) {
    return new ImageFailure(
      'invalid_source',
      'the image takes more memory to unpack than allowed',
      { cause: error },
    );
  }
  const [why = ''] = error.message.split('\n').slice(-1);
  return new ImageFailure('invalid_source', `a layer cannot be unpacked: ${why.slice(-300)}`, {
    cause: error,
  });
}
