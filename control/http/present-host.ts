import { type HostEntry, isFenced, isPresent } from '../../shared/directory/hosts.ts';
import type { Host } from '../../shared/schemas/host.ts';

/** A host is drained when nothing on it runs or changes, and only paused sandboxes have disks. */
function stateOf(entry: HostEntry): Host['state'] {
  const { report, order } = entry;
  if (!isPresent(entry)) return isFenced(entry) ? 'fenced' : 'away';
  if (order !== 'drained') return order;
  const { sandboxesActive, execsRunning, execsWaiting, disks, disksHeld } = report;
  const work = sandboxesActive + execsRunning + execsWaiting + (disks - disksHeld);
  return report.order === 'drained' && work === 0 ? 'drained' : 'draining';
}

export function presentHost(entry: HostEntry, region: string): Host {
  const { seenAt, order: _followed, sandboxStorage: _storage, ...figures } = entry.report;
  return {
    id: entry.hostId,
    region,
    state: stateOf(entry),
    order: entry.order,
    ...figures,
    lastHeartbeat: new Date(seenAt).toISOString(),
  };
}
