import { closeSync } from 'node:fs';
import { type LockRecovery, serveDisks } from '../nfs/nfs-server.ts';
import { GuestFailure } from '../guest-link/guest-errors.ts';
import type { GuestLink } from '../guest-link/guest-link.ts';
import { native } from '../../native/native.ts';
import type { MachineSpec } from '../driver.ts';
import { failpoint } from '../../system/failpoint.ts';
import { type BringUp, configureGuest } from './configure-guest.ts';
import { readIdentity } from '../shim/shim-files.ts';
import { type MicrovmHost, pathsOf } from './microvm-host.ts';
import { vmCgroup } from './process/launch.ts';

/** Every file has changed since. */
const NEVER = 1n;

/**
 * Has the NFS server of a machine run in its slot, if the sandbox mounts disks. Idempotent.
 * @throws Error with what failed
 */
export async function serveMounts(
  host: MicrovmHost,
  { vmId, vcpuCount: cpus, slot, mounts }: MachineSpec,
  recovery?: LockRecovery,
): Promise<void> {
  const { dataDir, handleSecret, hasNetwork, databases } = host;
  if (mounts.length === 0) return;
  if (!hasNetwork) throw new Error('virtual machines mount disks only with SANDBOX_NETWORK=on');
  const machine = (await readIdentity(pathsOf(host, vmId).run))?.machine;
  if (machine === undefined) throw new Error('the shim recorded no identity of the machine');
  const cgroup = vmCgroup(host, vmId);
  const guards = databases.guardsOf(vmId);
  const sandbox = { cgroup, machine, cpus, slot, mounts, recovery, guards };
  await serveDisks({ dataDir, handleSecret, ...sandbox });
}

export interface Restoring extends BringUp {
  /** Since when it has stood still, in nanoseconds since 1970; unknown: it recovers no locks. */
  readonly stoodStillSince?: bigint;
}

/**
 * Configures a guest and has it mount its disks. A frozen guest has them mounted already: it
 * recovers its locks once their server is there, and is thawed then, unless it is held.
 * @throws the guest's refusal, or an AbortError
 */
export async function bringUpGuest(
  host: MicrovmHost,
  guest: GuestLink,
  spec: MachineSpec,
  signal: AbortSignal,
  how: Restoring,
): Promise<void> {
  if (how.isFrozen) return bringBack(host, guest, spec, signal, how);
  await serveMounts(host, spec);
  await configureGuest(guest, spec, signal);
  for (const { diskId, path, readOnly } of spec.mounts) {
    const address = spec.slot.gatewayAddress;
    const disk = { address, name: diskId, path, isReadOnly: readOnly };
    await guest.call(signal, (channel) => failpoint('mount in guest', () => channel.mount(disk)));
  }
}

async function bringBack(
  host: MicrovmHost,
  guest: GuestLink,
  spec: MachineSpec,
  signal: AbortSignal,
  { stoodStillSince = NEVER, isHeld = false }: Restoring,
): Promise<void> {
  const [fd, end] = native.pipe();
  try {
    await serveMounts(host, spec, { since: stoodStillSince, fd });
    await configureGuest(guest, spec, signal);
    if (spec.mounts.length > 0) await recoverLocks(guest, signal);
  } finally {
    closeSync(fd);
    closeSync(end); // From now on the server takes locks for new ones.
  }
  if (!isHeld) await guest.call(signal, (channel) => channel.thaw());
}

async function recoverLocks(guest: GuestLink, signal: AbortSignal): Promise<void> {
  try {
    await guest.call(signal, (channel) => channel.recoverLocks());
  } catch (error) {
    if (!(error instanceof GuestFailure)) throw error; // An older guest does not ask for locks.
  }
}
