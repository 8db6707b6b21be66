import type { GuestLink } from '../guest-link/guest-link.ts';
import { serveDisks } from '../mounts/nfs-server.ts';
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
): Promise<void> {
  const { dataDir, handleSecret, hasNetwork } = host;
  if (mounts.length === 0) return;
  if (!hasNetwork) throw new Error('virtual machines mount disks only with SANDBOX_NETWORK=on');
  const machine = (await readIdentity(pathsOf(host, vmId).run))?.machine;
  if (machine === undefined) throw new Error('the shim recorded no identity of the machine');
  const cgroup = vmCgroup(host, vmId);
  await serveDisks({ dataDir, handleSecret, cgroup, machine, cpus, slot, mounts });
}

/**
 * Configures a guest and has it mount its disks. A frozen guest has them mounted already: it is
 * thawed once their server is there.
 * @throws the guest's refusal, or an AbortError
 */
export async function bringUpGuest(
  host: MicrovmHost,
  guest: GuestLink,
  spec: MachineSpec,
  signal: AbortSignal,
  { isFrozen }: { readonly isFrozen: boolean },
): Promise<void> {
  await serveMounts(host, spec);
  await configureGuest(guest, spec, signal, { isFrozen });
  if (isFrozen) return;
  for (const { diskId, path, readOnly } of spec.mounts) {
    const address = spec.slot.gatewayAddress;
    const disk = { address, name: diskId, path, isReadOnly: readOnly };
    await guest.call(signal, (channel) => failpoint('mount in guest', () => channel.mount(disk)));
  }
}
