import { failpoint } from '../system/failpoint.ts';
import { native } from '../native/native.ts';
import type { MachineSpec } from '../sandboxes/machine-driver.ts';
import type { RuncMachine } from './runc-machine.ts';

/**
 * Gives the guest of a container its identity and defaults. Its root, clock and random numbers are
 * the host's business, and it has no interface but loopback. Nobody inside may change the host name,
 * so that is done here.
 * @throws what the guest answers, or an AbortError
 */
export async function configureContainer(
  machine: RuncMachine,
  { settings }: MachineSpec,
  signal: AbortSignal,
): Promise<void> {
  await native.setHostname(machine.pid, settings.hostname);
  const told = { ...settings, directory: '/', rootDisk: undefined, network: undefined };
  await machine.guest.call(signal, (channel) =>
    failpoint('configure guest', () => channel.configure(told)),
  );
}
