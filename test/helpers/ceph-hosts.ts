import assert from 'node:assert';
import { existsSync, readFileSync } from 'node:fs';
import { chmod, mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { newHostId } from '../../shared/ids.ts';
import { CephFs, type CephMount } from './ceph-fs.ts';
import type { Environment } from './daemon.ts';
import { Stack, type StackNode } from './stack.ts';

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

/** The shipped example of a fence, which notes first whom it shuts out. */
const fenceIn = (directory: string): string =>
  `#!/bin/sh\nmkdir -p ${directory}/shut-out && touch ${directory}/shut-out/$1\nexec ${root}scripts/fence-ceph "$1"\n`;

export async function startCephStack(settings: Environment = {}): Promise<CephStack> {
  await using undo = new AsyncDisposableStack();
  const cephFs = undo.use(await CephFs.start());
  const stack = await Stack.start(settings);
  undo.defer(() => stack.stop());
  // Nothing may use the mounts when they end, and nothing may be left of them after the stack.
  undo.defer(() => cephFs.endMounts());
  await stack.agent.stop(); // Its storage is not the shared one.
  const { directory } = stack;
  const fence = join(directory, 'fence');
  await writeFile(fence, fenceIn(directory));
  await chmod(fence, 0o755);
  const noteOf = (hostId: string): string => join(directory, 'shut-out', hostId);
  const addHost = async (name: string): Promise<CephHost> => {
    const hostId = newHostId();
    const dataDir = join(directory, name);
    await mkdir(dataDir, { mode: 0o700 });
    await writeFile(join(dataDir, 'host-id'), `${hostId}\n`);
    const mount = await cephFs.mount(hostId, join(directory, `${name}-storage`));
    const environment = {
      STORAGE_DIR: mount.directory,
      AGENT_DATA_DIR: dataDir,
      STORAGE_FENCE_COMMAND: fence,
      CEPH_CONF: cephFs.ceph.configuration,
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
      ({ hostId, mount }) => file.startsWith(`${mount.directory}/`) && existsSync(noteOf(hostId)),
    ),
  );
  const parts = undo.move();
  return {
    ...{ stack, cephFs, hosts },
    isShutOut: ({ hostId }) => existsSync(noteOf(hostId)),
    remount: async ({ hostId, mount }) => {
      await cephFs.remount(mount);
      await rm(noteOf(hostId));
    },
    [Symbol.asyncDispose]: () => parts.disposeAsync(),
  };
}

/** Whether the host has the disk mounted, as the kernel has it. */
export const hasMounted = ({ node: { daemon } }: CephHost, diskId: string): boolean =>
  daemon.isRunning && readFileSync(`/proc/${daemon.pid}/mountinfo`, 'utf8').includes(`/${diskId} `);
