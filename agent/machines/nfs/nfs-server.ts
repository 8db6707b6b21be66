import { closeSync, writeSync } from 'node:fs';
import type { ProcessId } from '../../../shared/process-id.ts';
import { NAMESPACES } from '../../network/slots/nft.ts';
import type { SlotPlan } from '../../network/slots/slot.ts';
import { native, serveDisksPath } from '../../native/native.ts';
import type { MachineMount } from '../attachments.ts';
import { startShim } from '../shim/start-shim.ts';
import type { MachineCgroup } from '../shim/machine-cgroup.ts';
import { MACHINE_LIMITS } from '../limits.ts';
import { failpoint } from '../../system/failpoint.ts';
import { sealKey } from './handle-seal.ts';
import { mountArguments } from './mount-in-container.ts';
import { nfsConfig } from './nfs-config.ts';
import { pluginsDir, provideNfsPrograms } from './nfs-programs.ts';

interface NfsServer {
  readonly dataDir: string;
  /** Keys that seal handles follow from it. */
  readonly handleSecret: Buffer;
  /** The groups of the machine: the server ends with them. */
  readonly cgroup: MachineCgroup;
  /** The machine's process: the server ends with it, whether an agent is there or not. */
  readonly machine: ProcessId;
  readonly cpus: number;
  readonly slot: SlotPlan;
  readonly mounts: readonly MachineMount[];
  /** The guest was paused, and its kernel is about to ask for the locks that it had. */
  readonly recovery: LockRecovery | undefined;
  /** Locks of databases that the paused guest has kept (locked-databases.ts). */
  readonly guards: readonly number[];
}

/** How long a guest recovers the locks that it had before its pause, and which (wal-locks.c). */
export interface LockRecovery {
  /** Since when it has been paused, in nanoseconds since 1970. */
  readonly since: bigint;
  /** A pipe that ends when it has recovered. */
  readonly fd: number;
}

/**
 * Starts the NFS server of a machine in its network slot (serve-disks.c), unless it runs. It
 * outlives the agent, but not the machine.
 * @throws Error with what failed
 */
export async function serveDisks(server: NfsServer): Promise<void> {
  const { dataDir, handleSecret, cgroup, machine, cpus, slot, mounts, recovery, guards } = server;
  if (mounts.length === 0 || (await cgroup.hasServer())) return;
  const programs = await provideNfsPrograms(dataDir);
  const { nfsServerBytesMax: memoryBytes, nfsServerThreadsMax: processes } = MACHINE_LIMITS;
  const groups = await cgroup.createServer({ memoryBytes, processes, cpus });
  const config = nfsConfig(mounts, { address: slot.gatewayAddress, pluginsDir });
  const watched = [String(machine.pid), machine.startTime.split('/')[1] ?? ''];
  const network = `${NAMESPACES}/${slot.namespace}`;
  const disks = mountArguments(mounts, ({ diskId }) => diskId);
  const since = String(recovery?.since ?? 0);
  const served = [network, programs, config, since, String(groups.length), ...groups, ...disks];
  const key = pipeWith(sealKey(handleSecret, mounts));
  try {
    await failpoint('start NFS server', () =>
      startShim(serveDisksPath, [...watched, ...served], [key, recovery?.fd, ...guards]),
    );
  } finally {
    closeSync(key);
  }
}

/**
 * A pipe with these few bytes and their end, so that no command line shows them.
 * @returns its reading end
 */
function pipeWith(bytes: Buffer): number {
  const [readFd, writeFd] = native.pipe();
  writeSync(writeFd, bytes);
  closeSync(writeFd);
  return readFd;
}
