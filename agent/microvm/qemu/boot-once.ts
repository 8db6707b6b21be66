import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { GuestChannel } from '../../guest-link/guest-channel.ts';
import { connectSocket } from './connect-socket.ts';
import { launch, type Launch, type VmHost, vmCgroup } from './launch.ts';
import { machinePaths } from './machine-directory.ts';
import { runPaths } from './shim.ts';

/**
 * Boots a machine that is no sandbox's until its guest has said its first word; the guest was asked
 * nothing then. `clearMachine` ends it.
 * @throws Error when it does not come up in time
 */
export async function bootOnce(host: VmHost, spec: Launch, timeoutMs: number): Promise<void> {
  await launch(host, spec);
  const socket = connectSocket(runPaths(machinePaths(spec.directory).run).guest);
  await once(socket, 'connect');
  const { channel } = await GuestChannel.open(socket, { timeoutMs });
  channel.close();
}

/** Ends such a machine, and removes all of it. Idempotent. */
export async function clearMachine(
  host: VmHost,
  { name, directory }: Pick<Launch, 'name' | 'directory'>,
): Promise<void> {
  const cgroup = vmCgroup(host, name);
  await cgroup.kill();
  await rm(directory, { recursive: true, force: true });
  await cgroup.remove();
}
