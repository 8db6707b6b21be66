import type { Hosts } from '../../shared/directory/hosts.ts';

/** @throws Error when an operator has removed this host: its disks and sandboxes are others' now */
export async function refuseRemoved(hosts: Hosts, hostId: string): Promise<void> {
  if (!(await hosts.isRemoved(hostId))) return;
  throw new Error(
    `${hostId} was removed from its cluster: empty AGENT_DATA_DIR, and join as a new host`,
  );
}

/** Ends the agent in order: it was cut off while its host was removed. The next one is refused. */
export const endRemoved = (): void => {
  process.kill(process.pid, 'SIGTERM');
};
