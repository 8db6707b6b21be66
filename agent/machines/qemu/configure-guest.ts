import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { failpoint } from '../../system/failpoint.ts';
import type { MachineSpec } from '../driver.ts';
import { GuestFailure } from '../guest-link/guest-errors.ts';
import type { GuestLink } from '../guest-link/guest-link.ts';
import type { GuestSettings } from '../guest-link/guest-types.ts';
import { guestNetwork } from './memory/guest-network.ts';

/** Run once in a prewarmed VM, so that a sandbox's first command finds the shell in memory. */
const WARM_UP = '/bin/true; true';

/** All settings of the guest: those of the sandbox and those of the machine. */
const guestSettings = ({ settings, slot }: MachineSpec): GuestSettings => ({
  ...settings,
  rootDisk: { device: '/dev/vda', type: 'ext4' },
  network: guestNetwork(slot),
});

export interface BringUp {
  /** Whether its processes stand still, as those of a checkpoint do. */
  readonly isFrozen: boolean;
  /** Whether they are to stand still until somebody thaws the guest. */
  readonly isHeld?: boolean;
}

/**
 * Gives a guest its identity, clock, entropy and network.
 * Retried on the next channel when one breaks, so the requests are idempotent.
 * @throws the guest's refusal, or an AbortError
 */
export async function configureGuest(
  guest: GuestLink,
  spec: MachineSpec,
  signal: AbortSignal,
): Promise<void> {
  await guest.call(signal, (channel) =>
    failpoint('configure guest', () => channel.configure(guestSettings(spec))),
  );
}

/**
 * Runs a first command that leaves nothing behind; an image that has no shell is left as it is.
 * @throws Error, or the signal's reason
 */
export async function warmUp({ channel }: GuestLink, signal: AbortSignal): Promise<void> {
  if (channel === undefined) throw new Error('the guest does not answer');
  const id = randomUUID();
  const streams = { terminal: undefined, stdin: false, isFollowed: false };
  const spec = { environment: {}, directory: '/', user: '0:0', isAttachable: false };
  const exited = once(channel, 'exited', { signal });
  exited.catch(() => undefined); // An abort may reject it before it is awaited.
  try {
    await channel.start({ id, command: WARM_UP, ...spec, ...streams, timeoutMs: undefined });
  } catch (error) {
    if (error instanceof GuestFailure) return;
    throw error;
  }
  await exited;
  await channel.forget(id);
}
