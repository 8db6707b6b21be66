import { NAMESPACES } from '../network/nft.ts';
import type { SlotPlan } from '../network/slot.ts';
import { serveDisksPath } from '../native/native.ts';
import type { MachineMount } from '../sandboxes/sandbox-mounts.ts';
import { startKeeper } from '../machines/start-keeper.ts';
import type { MachineCgroup } from '../machines/machine-cgroup.ts';
import { LIMITS } from '../../shared/limits.ts';
import { failpoint } from '../system/failpoint.ts';
import { mountArguments } from './mount-in-container.ts';
import { nfsConfig } from './nfs-config.ts';
import { pluginsDir, provideNfsPrograms } from './nfs-programs.ts';

interface NfsServer {
  readonly dataDir: string;
  /** The groups of the machine: the server ends with them. */
  readonly cgroup: MachineCgroup;
  readonly slot: SlotPlan;
  readonly mounts: readonly MachineMount[];
}

/**
 * Starts the NFS server of a machine in its network slot (serve-disks.c), unless it runs. It outlives
 * the agent, and ends when the groups of the machine are killed.
 * @throws Error with what failed
 */
export async function serveDisks({ dataDir, cgroup, slot, mounts }: NfsServer): Promise<void> {
  if (mounts.length === 0 || (await cgroup.hasServer())) return;
  const programs = await provideNfsPrograms(dataDir);
  const groups = await cgroup.createServer(LIMITS.nfsServerBytesMax);
  const config = nfsConfig(mounts, { address: slot.gatewayAddress, pluginsDir });
  const network = `${NAMESPACES}/${slot.namespace}`;
  const disks = mountArguments(mounts, ({ diskId }) => diskId);
  const args = [network, programs, config, String(groups.length), ...groups, ...disks];
  await failpoint('start NFS server', () => startKeeper(serveDisksPath, args, []));
}
