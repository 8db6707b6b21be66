import { failpoint } from '../../system/failpoint.ts';
import { connectContainer } from '../../network/slots/container-link.ts';
import { native } from '../../native/native.ts';
import type { MachineSpec } from '../driver.ts';
import { mountInContainer } from '../nfs/mount-in-container.ts';
import { firstIdOf, type RuncHost } from './runc-host.ts';
import type { RuncMachine } from './runc-machine.ts';

const HOST_DOES_IT = {
  ...{ interface: '', address: '0.0.0.0', prefixBits: 0, gateway: '0.0.0.0', mtuBytes: 0 },
} as const;

/**
 * Gives the guest of a container its identity and defaults. Its root, clock and random numbers are
 * the host's business. Nobody inside may change the host name or the network, so that is done here.
 * @throws what the guest answers, or an AbortError
 */
export async function configureContainer(
  host: RuncHost,
  machine: RuncMachine,
  { settings, slot, mounts, uid }: MachineSpec,
  signal: AbortSignal,
): Promise<void> {
  const { hasNetwork } = host;
  await native.setHostname(machine.pid, settings.hostname);
  await mountInContainer(machine.pid, firstIdOf(host, uid), mounts);
  // A prewarmed one has its link already.
  if (hasNetwork && machine.connectedTo !== slot.index) {
    await connectContainer(slot, machine.pid);
    machine.connectedTo = slot.index;
  }
  const network = hasNetwork ? { ...HOST_DOES_IT, resolver: slot.gatewayAddress } : undefined;
  const told = { ...settings, rootDisk: undefined, network };
  await machine.guest.call(signal, (channel) =>
    failpoint('configure guest', () => channel.configure(told)),
  );
}
