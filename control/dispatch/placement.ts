import type { SandboxResources } from '../../shared/directory/capacity.ts';
import { AppError } from '../../shared/errors.ts';
import type { Host } from './agent-hub.ts';

const freeSlots = ({ load, jobsPending }: Host): number =>
  load.execSlots - Math.max(load.execsRunning + load.execsWaiting, jobsPending);

/**
 * The hosts for work on disks, best first: those that handle some of them, by how many; for disks
 * without a handler the least loaded one (docs/architecture.md, The life of an exec). Pure.
 * @param handlers of each disk, where it has one
 * @returns at least one host id
 * @throws AppError `unavailable` or `no_capacity`; both are worth another try
 */
export function rankHosts(
  hosts: readonly Host[],
  handlers: readonly (string | undefined)[],
): string[] {
  const counts = new Map<string, number>();
  for (const handler of handlers) {
    if (handler === undefined) continue;
    const host = hosts.find(({ hostId }) => hostId === handler);
    if (host === undefined) {
      throw new AppError('unavailable', 'the host that handles this disk cannot be reached now');
    }
    if (host.load.draining) {
      throw new AppError('unavailable', 'the host that handles this disk takes no work now');
    }
    counts.set(handler, (counts.get(handler) ?? 0) + 1);
  }
  if (counts.size > 0) {
    return [...counts].sort(([, a], [, b]) => b - a).map(([hostId]) => hostId);
  }
  const [best] = hosts
    .filter(({ load }) => !load.draining)
    .sort(
      (a, b) =>
        Number(a.load.storageLow) - Number(b.load.storageLow) || freeSlots(b) - freeSlots(a),
    );
  if (best === undefined) throw new AppError('no_capacity', 'no host is available now');
  return [best.hostId];
}

type HostSandboxes = Host['load']['sandboxes'];

/** What of the host would be taken once the sandbox were there. */
function shareTaken(
  { memoryMib, memoryMibUsed, vcpus, vcpusUsed }: HostSandboxes,
  need: SandboxResources,
): { memory: number; vcpus: number } {
  return {
    memory: (memoryMibUsed + need.memoryMib) / memoryMib,
    vcpus: (vcpusUsed + need.vcpus) / vcpus,
  };
}

/** If nothing else were there. */
const couldHold = ({ memoryMib, vcpus }: HostSandboxes, need: SandboxResources): boolean =>
  need.memoryMib <= memoryMib && need.vcpus <= vcpus;

/**
 * The hosts for a new sandbox by their last report, least loaded first. Pure. Reports are up to a
 * second old, so only a reservation tells whether a host has the capacity.
 * @returns at least one host id
 * @throws AppError `not_enabled` when no host runs sandboxes, `no_capacity` when none could hold it
 */
export function rankSandboxHosts(hosts: readonly Host[], need: SandboxResources): string[] {
  if (hosts.length === 0) throw new AppError('no_capacity', 'no host is available now');
  const enabled = hosts.filter(({ load }) => load.sandboxes.isEnabled);
  if (enabled.length === 0) {
    throw new AppError('not_enabled', 'sandboxes are not enabled on the hosts of this region');
  }
  const ranked = enabled
    .filter(({ load }) => !load.draining && !load.sandboxes.isLow)
    .filter(({ load: { sandboxes } }) => couldHold(sandboxes, need))
    .map(({ hostId, load }) => ({ hostId, share: shareTaken(load.sandboxes, need) }))
    .sort((a, b) => a.share.memory - b.share.memory || a.share.vcpus - b.share.vcpus);
  if (ranked.length === 0) throw noSandboxCapacity(need);
  return ranked.map(({ hostId }) => hostId);
}

export const noSandboxCapacity = ({ memoryMib, vcpus }: SandboxResources): AppError =>
  new AppError(
    'no_capacity',
    `no host has ${memoryMib} MiB and ${vcpus} vCPUs left for this sandbox now; try again`,
  );
