import { uptime } from 'node:os';
import { hostBootId, isAlive } from '../../shared/process-id.ts';
import { readEnd, isEndKnown } from '../machines/machine-end.ts';
import { readIdentity } from '../machines/shim-files.ts';
import type { MachineEnd } from '../sandboxes/machine-driver.ts';
import { cgroupOf, CONTAINER, pathsOf, type RuncHost } from './runc-host.ts';
import { RuncMachine } from './runc-machine.ts';

/** Watches the container of which this host's shim says that it runs. @throws Error without one */
export async function watchContainer(host: RuncHost, vmId: string): Promise<RuncMachine> {
  const { run: runDir, guest: socket } = pathsOf(host, vmId);
  const identity = await readIdentity(runDir);
  if (identity === undefined) throw new Error('the container told nothing of itself');
  const cgroup = cgroupOf(host, vmId);
  return new RuncMachine({ runDir, socket, identity, cgroup, log: host.log });
}

/** Takes over the container that a former agent started, or tells how it ended since. */
export async function recoverContainer(
  host: RuncHost,
  vmId: string,
): Promise<RuncMachine | MachineEnd> {
  const { run } = pathsOf(host, vmId);
  const identity = await readIdentity(run);
  if (identity === undefined) {
    return { reason: 'vmm_crashed', message: 'nothing is left of the container' };
  }
  if (isAlive(identity.keeper)) return watchContainer(host, vmId);
  if (identity.hostBootId !== hostBootId() && !(await isEndKnown(run))) {
    const endedAt = Math.round(Date.now() - uptime() * 1000); // At the latest.
    return { reason: 'host_restarted', message: 'the host was restarted', endedAt };
  }
  await cgroupOf(host, vmId).kill();
  return readEnd(run, undefined, CONTAINER);
}
