import { closeSync } from 'node:fs';
import type { GuestLink } from '../guest-link/guest-link.ts';
import { type LockRecovery, serveDisks } from '../mounts/nfs-server.ts';
import { native } from '../native/native.ts';
import type { MachineSpec } from '../sandboxes/machine-driver.ts';
import { failpoint } from '../system/failpoint.ts';
import { configureGuest } from './configure-guest.ts';
import { readIdentity } from '../machines/shim-files.ts';
import { type MicrovmHost, pathsOf } from './microvm-host.ts';
import { vmCgroup } from './qemu/launch.ts';

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

interface Restored {
  /** Its processes stand still, with the disks mounted that they had. */
  readonly isFrozen: boolean;
  /** Since when, in nanoseconds since 1970, where that is known: locks can be recovered then. */
  readonly stoodStillSince?: bigint;
}

/**
 * Configures a guest and has it mount its disks. A frozen guest has them mounted already: it is
 * thawed once their server is there, and recovers its locks before its processes continue.
 * @throws the guest's refusal, or an AbortError
 */
export async function bringUpGuest(
  host: MicrovmHost,
  guest: GuestLink,
  spec: MachineSpec,
  signal: AbortSignal,
  { isFrozen, stoodStillSince }: Restored,
): Promise<void> {
  if (isFrozen) return thawGuest(host, guest, spec, signal, stoodStillSince);
  await serveMounts(host, spec);
  await configureGuest(guest, spec, signal, { isFrozen });
  for (const { diskId, path, readOnly } of spec.mounts) {
    const address = spec.slot.gatewayAddress;
    const disk = { address, name: diskId, path, isReadOnly: readOnly };
    await guest.call(signal, (channel) => failpoint('mount in guest', () => channel.mount(disk)));
  }
}

async function thawGuest(
  host: MicrovmHost,
  guest: GuestLink,
  spec: MachineSpec,
  signal: AbortSignal,
  since: bigint | undefined,
): Promise<void> {
  const [fd, end] = native.pipe();
  try {
    await serveMounts(host, spec, since === undefined ? undefined : { since, fd });
    await configureGuest(guest, spec, signal, { isFrozen: true });
  } finally {
    closeSync(end);
    closeSync(fd);
  }
}
