import { mkdir } from 'node:fs/promises';
import { failpoint } from '../system/failpoint.ts';
import type { MachineOwner } from '../sandboxes/machine-driver.ts';
import { isPaused, standStill } from './paused-container.ts';
import { pathsOf, type RuncHost } from './runc-host.ts';
import type { RuncMachine } from './runc-machine.ts';
import { copyDisk, hasDisk } from './sandbox-disk.ts';

/**
 * Gives a sandbox that does not exist yet a copy of another one's disk; the memory stays behind. A
 * container that runs stands still meanwhile.
 */
export async function forkContainer(
  host: RuncHost,
  vmId: string,
  running: RuncMachine | undefined,
  child: MachineOwner,
): Promise<void> {
  const { disk } = pathsOf(host, vmId);
  if (!hasDisk(disk)) return; // The source never ran: the copy begins like any new sandbox.
  const { directory, disk: copy } = pathsOf(host, child.vmId);
  await mkdir(directory, { recursive: true, mode: 0o711 });
  const isMounted = running !== undefined || (await isPaused(host, vmId));
  if (running !== undefined) await standStill(running);
  try {
    await failpoint('copy disk', () => copyDisk(disk, copy, { isMounted }));
  } finally {
    await running?.cgroup.thaw();
  }
}
