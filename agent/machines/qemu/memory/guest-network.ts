import { randomUUID } from 'node:crypto';
import type { GuestChannel } from '../../guest-link/guest-channel.ts';
import type { GuestSettings } from '../../guest-link/guest-types.ts';
import type { SlotPlan } from '../../../network/slots/slot.ts';

/** The settings of the guest's only network card, which its slot decides. */
export const guestNetwork = (slot: SlotPlan): NonNullable<GuestSettings['network']> => ({
  interface: 'eth0',
  address: slot.guestAddress,
  prefixBits: slot.prefixBits,
  gateway: slot.gatewayAddress,
  resolver: slot.gatewayAddress,
  mtuBytes: slot.mtuBytes,
});

/**
 * Configures the network of a guest that becomes a template, which is the same for all machines.
 * The guest's driver busy-waits for each step of that; machines that start from the template save
 * it.
 */
export async function configureTemplateNetwork(
  channel: GuestChannel,
  slot: SlotPlan,
): Promise<void> {
  await channel.configure({
    // Placeholders; each machine gets its own.
    ...{ hostname: 'template', machineId: randomUUID(), bootId: randomUUID() },
    ...{ environment: {}, directory: '/', user: '', rootDisk: undefined },
    // The file that names the resolver is on the root disk.
    network: { ...guestNetwork(slot), resolver: '0.0.0.0' },
  });
}
