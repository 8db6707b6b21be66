/**
 * Shuts the agent down: its host was removed while it was cut off. The next agent clears the host
 * (agent/disks/removed-host.ts), and is refused.
 */
export const endRemoved = (): void => {
  process.kill(process.pid, 'SIGTERM');
};
