import assert from 'node:assert';
import { execFile } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { chmod, mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { newHostId } from '../../shared/ids.ts';
import { CephFs, type CephMount } from './ceph-fs.ts';
import type { Environment } from './daemon.ts';
import { Stack, type StackNode } from './stack.ts';

const run = promisify(execFile);
const root = new URL('../../', import.meta.url).pathname;

/** A host whose disks are on its own mount of CephFS. */
export interface CephHost {
  readonly hostId: string;
  readonly node: StackNode;
  readonly mount: CephMount;
}

/** A stack of two hosts that share CephFS, each with a cephx id and a mount of its own. */
export interface CephStack extends AsyncDisposable {
  readonly stack: Stack;
  readonly cephFs: CephFs;
  readonly hosts: readonly [CephHost, CephHost];
  /** Whether the host was shut out of the storage since its last mount. */
  isShutOut(host: CephHost): boolean;
  /** Mounts the storage of a host that was shut out once more. */
  remount(host: CephHost): Promise<void>;
}

type Note = 'fencing' | 'shut-out';
const noteOf = (directory: string, note: Note, hostId: string): string =>
  join(directory, note, hostId);

/**
 * Writes a fence: the shipped example, which notes whom it shuts out and whom it has shut out.
 * @returns for `STORAGE_FENCE_COMMAND`
 */
export async function writeFence(directory: string, { ceph }: CephFs): Promise<string> {
  const fence = join(directory, 'fence');
  for (const note of ['fencing', 'shut-out']) await mkdir(join(directory, note));
  const [begun, done] = [noteOf(directory, 'fencing', '$1'), noteOf(directory, 'shut-out', '$1')];
  const lines = [
    ...['#!/bin/sh', `export CEPH_CONF=${ceph.configuration}`, `touch ${begun}`],
    `if ${root}scripts/fence-ceph "$1"; then touch ${done}; else rm -f ${begun}; exit 1; fi`,
  ];
  await writeFile(fence, [...lines, ''].join('\n'));
  await chmod(fence, 0o755);
  return fence;
}

/** Whether the fence has shut the host out. */
export const wasShutOut = (directory: string, hostId: string): boolean =>
  existsSync(noteOf(directory, 'shut-out', hostId));

/**
 * Whether the storage may have shut the host out already. Ceph frees the locks of a client once its
 * OSDs refuse it: others take its disks from then on, before the fence has ended.
 */
export const isBeingShutOut = (directory: string, hostId: string): boolean =>
  existsSync(noteOf(directory, 'fencing', hostId));

/** Forgets it, when the host has mounted its storage anew. */
export async function forgetShutOut(directory: string, hostId: string): Promise<void> {
  for (const note of ['fencing', 'shut-out'] as const) {
    await rm(noteOf(directory, note, hostId), { force: true });
  }
}

export async function startCephStack(settings: Environment = {}): Promise<CephStack> {
  await using undo = new AsyncDisposableStack();
  const cephFs = undo.use(await CephFs.start());
  const stack = await Stack.start(settings);
  undo.defer(() => stack.stop());
  // Nothing may use the mounts when they end, and nothing may be left of them after the stack.
  undo.defer(() => cephFs.endMounts());
  await stack.agent.stop(); // Its storage is not the shared one.
  const { directory } = stack;
  const fence = await writeFence(directory, cephFs);
  const addHost = async (name: string): Promise<CephHost> => {
    const hostId = newHostId();
    const dataDir = join(directory, name);
    await mkdir(dataDir, { mode: 0o700 });
    await writeFile(join(dataDir, 'host-id'), `${hostId}\n`);
    const mount = await cephFs.mount(hostId, join(directory, `${name}-storage`));
    // The region has a host already, so its operator makes a new storage by hand.
    await run('env', [...mount.within, 'mkdir', '-p', join(mount.directory, 'disks')]);
    const environment = {
      STORAGE_DIR: mount.directory,
      AGENT_DATA_DIR: dataDir,
      STORAGE_FENCE_COMMAND: fence,
    };
    const node = await stack.addAgent(environment, mount.within);
    undo.defer(async () => {
      assert((await node.daemon.stop('SIGPWR')) === 0);
    });
    await node.start();
    return { hostId, node, mount };
  };
  const hosts = [await addHost('first'), await addHost('second')] as const;
  stack.loops.ignore((file) =>
    hosts.some(
      ({ hostId, mount }) =>
        file.startsWith(`${mount.directory}/`) && isBeingShutOut(directory, hostId),
    ),
  );
  const parts = undo.move();
  return {
    ...{ stack, cephFs, hosts },
    isShutOut: ({ hostId }) => wasShutOut(directory, hostId),
    remount: async ({ hostId, mount }) => {
      await cephFs.remount(mount);
      await forgetShutOut(directory, hostId);
    },
    [Symbol.asyncDispose]: () => parts.disposeAsync(),
  };
}

/** Whether the host has the disk mounted, as the kernel has it. */
export const hasMounted = ({ node: { daemon } }: CephHost, diskId: string): boolean =>
  daemon.isRunning && readFileSync(`/proc/${daemon.pid}/mountinfo`, 'utf8').includes(`/${diskId} `);
