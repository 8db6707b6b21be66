import type { Hosts } from '../../shared/directory/hosts.ts';

/** @throws Error when an operator has removed this host: its disks and sandboxes are others' now */
export async function refuseRemoved(hosts: Hosts, hostId: string): Promise<void> {
  if (!(await hosts.isRemoved(hostId))) return;
  throw new Error(
    `${hostId} was removed from its cluster: empty AGENT_DATA_DIR, and join as a new host`,
  );
}

/** Shuts the agent down: its host was removed while it was cut off. The next agent is refused. */
export const endRemoved = (): void => {
  process.kill(process.pid, 'SIGTERM');
};
