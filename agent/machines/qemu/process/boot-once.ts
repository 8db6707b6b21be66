import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { GuestChannel } from '../../guest-link/guest-channel.ts';
import { connectSocket } from '../../shim/connect-socket.ts';
import { launch, type Launch, type VmHost, vmCgroup } from './launch.ts';
import { machinePaths } from './machine-directory.ts';
import { runPaths } from '../../shim/shim-files.ts';

/**
 * Boots a machine that belongs to no sandbox until its guest has sent its first message. Call
 * {@link clearMachine} to end it.
 * @param prepare sends the guest its only requests
 * @throws Error when the message does not come in time; what `prepare` throws
 */
export async function bootOnce(
  host: VmHost,
  spec: Launch,
  timeoutMs: number,
  prepare: (channel: GuestChannel) => Promise<void> = async () => undefined,
): Promise<void> {
  await launch(host, spec);
  const socket = connectSocket(runPaths(machinePaths(spec.directory).run).guest);
  await once(socket, 'connect');
  const { channel } = await GuestChannel.open(socket, { timeoutMs });
  await prepare(channel);
  channel.close();
}

/** Kills a machine that belongs to no sandbox and removes everything of it. Idempotent. */
export async function clearMachine(
  host: VmHost,
  { name, directory }: Pick<Launch, 'name' | 'directory'>,
): Promise<void> {
  const cgroup = vmCgroup(host, name);
  await cgroup.kill();
  await rm(directory, { recursive: true, force: true });
  await cgroup.remove();
}
