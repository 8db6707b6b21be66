import { type HostEntry, isFenced, isPresent } from '../../../shared/directory/hosts.ts';
import type { Host } from '../../../shared/schemas/host.ts';

/**
 * A host is drained when nothing on it runs or changes, and no disk is attached but those that
 * paused containers keep.
 */
function stateOf(entry: HostEntry): Host['state'] {
  const { report, order } = entry;
  if (!isPresent(entry)) return isFenced(entry) ? 'fenced' : 'away';
  if (order !== 'drained') return order;
  const { sandboxesActive, execsRunning, execsWaiting, disks, disksHeld } = report;
  const disksKept = report.pausedKeepDisks === false ? 0 : disksHeld;
  const work = sandboxesActive + execsRunning + execsWaiting + (disks - disksKept);
  return report.order === 'drained' && work === 0 ? 'drained' : 'draining';
}

export function presentHost(entry: HostEntry, region: string): Host {
  const { seenAt, order: _followed, ...report } = entry.report;
  const { sandboxStorage: _storage, pausedKeepDisks: _kept, ...figures } = report;
  return {
    id: entry.hostId,
    region,
    state: stateOf(entry),
    order: entry.order,
    ...figures,
    lastHeartbeat: new Date(seenAt).toISOString(),
  };
}
