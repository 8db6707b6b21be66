import { recoverMachine } from '../shim/supervised-machine.ts';
import { type MachineIdentity, readIdentity } from '../shim/shim-files.ts';
import type { MachineEnd } from '../driver.ts';
import { cgroupOf, CONTAINER, pathsOf, type RuncHost } from './runc-host.ts';
import { RuncMachine } from './runc-machine.ts';

/** Watches the container of which this host's shim says that it runs. @throws Error without one */
export async function watchContainer(host: RuncHost, vmId: string): Promise<RuncMachine> {
  const identity = await readIdentity(pathsOf(host, vmId).run);
  if (identity === undefined) throw new Error('the container told nothing of itself');
  return watch(host, vmId, identity);
}

/** Takes over the container that a former agent started. @returns it, or how it has ended */
export const recoverContainer = (
  host: RuncHost,
  vmId: string,
): Promise<RuncMachine | MachineEnd> => {
  const parts = { runDir: pathsOf(host, vmId).run, cgroup: cgroupOf(host, vmId), kind: CONTAINER };
  return recoverMachine(parts, (identity) => watch(host, vmId, identity));
};

function watch(host: RuncHost, vmId: string, identity: MachineIdentity): RuncMachine {
  const { run: runDir, guest } = pathsOf(host, vmId);
  const { log } = host;
  const cgroup = cgroupOf(host, vmId);
  return new RuncMachine({ runDir, identity, cgroup, kind: CONTAINER, log }, guest);
}
