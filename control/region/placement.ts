import type { SandboxResources } from '../../shared/directory/capacity.ts';
import { overheadMib } from '../../shared/directory/sandbox-need.ts';
import { AppError } from '../../shared/errors.ts';
import { REGION_LIMITS } from './limits.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';
import type { Host, KnownHosts } from './known-hosts.ts';

const freeSlots = ({ load, jobsPending }: Host): number =>
  load.execSlots - Math.max(load.execsRunning + load.execsWaiting, jobsPending);

const NONE: ReadonlySet<string> = new Set();

/** The hosts that take disks without a lease holder, in random order. */
const openHosts = (
  hosts: KnownHosts,
  refusing: ReadonlySet<string>,
): IteratorObject<Host, undefined> =>
  hosts
    .inRandomOrder()
    .filter(
      ({ hostId, load }) => !load.draining && load.cordoned !== true && !refusing.has(hostId),
    );

/** Whether a host takes disks without a lease holder, except those that refuse. */
export const hasOpenHost = (hosts: KnownHosts, refusing: ReadonlySet<string>): boolean =>
  openHosts(hosts, refusing).next().done !== true;

/**
 * The hosts for work on disks, best first: those that handle some of them, by how many; for disks
 * without a lease holder the least loaded of a few random hosts (docs/architecture.md, The life of
 * an exec). Disks of a cordoned host go elsewhere; where they are in use it comes last.
 * @param leaseHolders of each disk, where it has one
 * @param refusing hosts that are not drawn for disks without a lease holder
 * @returns at least one host
 * @throws AppError `unavailable` or `no_capacity`; both are worth another try
 */
export function rankHosts(
  hosts: KnownHosts,
  leaseHolders: readonly (string | undefined)[],
  refusing: ReadonlySet<string> = NONE,
): Host[] {
  const counts = new Map<Host, number>();
  const cordoned: Host[] = [];
  for (const [leaseHolder, count] of countEach(leaseHolders)) {
    const host = hosts.find(leaseHolder);
    if (host === undefined) {
      throw new AppError('unavailable', 'the host that handles this disk cannot be reached now');
    }
    if (host.load.draining) {
      throw new AppError('unavailable', 'the host that handles this disk takes no work now');
    }
    if (host.load.cordoned === true) cordoned.push(host);
    else counts.set(host, count);
  }
  if (counts.size > 0) {
    const handling = [...counts].sort(([, a], [, b]) => b - a).map(([host]) => host);
    return [...handling, ...cordoned];
  }
  const [best] = openHosts(hosts, refusing)
    .take(REGION_LIMITS.placementCandidates)
    .toArray()
    .sort(
      (a, b) =>
        Number(a.load.storageLow) - Number(b.load.storageLow) || freeSlots(b) - freeSlots(a),
    );
  const ranked = [...(best === undefined ? [] : [best]), ...cordoned];
  if (ranked.length === 0) throw new AppError('no_capacity', 'no host is available now');
  return ranked;
}

function countEach(ids: readonly (string | undefined)[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const id of ids) if (id !== undefined) counts.set(id, (counts.get(id) ?? 0) + 1);
  return counts;
}

/** A new sandbox's needs and preferences. */
export interface SandboxWishes {
  readonly need: SandboxResources;
  /** Hosts on which it cannot be are left out. */
  readonly canBeOn: (host: Host) => boolean;
  /** The hosts of its disks, once for each disk. */
  readonly diskHosts: readonly string[];
  /** Hosts that probably have its image or snapshot: considered besides those drawn at random. */
  readonly likely: readonly string[];
  /** Cost of a host, besides how full it is; see {@link shareTaken} for the scale. */
  readonly costOf: (hostId: string) => number;
}

type HostSandboxes = Host['load']['sandboxes'];

/** The share of the host that would be taken with the sandbox there: 1 is all of it. */
function shareTaken(
  { memoryMib, memoryMibUsed, vcpus, vcpusUsed }: HostSandboxes,
  need: SandboxResources,
): { memory: number; vcpus: number } {
  return {
    memory: (memoryMibUsed + need.memoryMib) / memoryMib,
    vcpus: (vcpusUsed + need.vcpus) / vcpus,
  };
}

/** Whether the host could hold it if it held nothing else. */
const couldHold = ({ memoryMib, vcpus }: HostSandboxes, need: SandboxResources): boolean =>
  need.memoryMib <= memoryMib && need.vcpus <= vcpus;

/**
 * Draws hosts until enough of them have capacity by their last report. Those without are kept, too:
 * a report is up to a second old, and only a reservation decides.
 */
function drawCandidates(
  hosts: KnownHosts,
  { need, canBeOn, diskHosts, likely }: SandboxWishes,
): { readonly candidates: ReadonlySet<Host>; readonly enabled: readonly HostSandboxes[] } {
  const candidates = new Set<Host>();
  const enabled: HostSandboxes[] = [];
  const seen = new Set<string>();
  /** @returns whether it has the capacity */
  const consider = (host: Host): boolean => {
    const { hostId, load } = host;
    if (seen.has(hostId)) return false;
    seen.add(hostId);
    if (!load.sandboxes.isEnabled || !canBeOn(host)) return false;
    enabled.push(load.sandboxes);
    if (load.draining || load.sandboxes.isLow || !couldHold(load.sandboxes, need)) return false;
    const hasRoom = isRoomIn(load.sandboxes, need);
    if (hasRoom || candidates.size < REGION_LIMITS.placementCandidates) candidates.add(host);
    return hasRoom;
  };
  for (const hostId of [...diskHosts, ...likely.slice(0, REGION_LIMITS.placementCandidates)]) {
    const host = hosts.find(hostId);
    if (host !== undefined) consider(host);
  }
  let drawn = 0;
  for (const host of hosts.inRandomOrder()) {
    if (consider(host)) drawn += 1;
    if (drawn === REGION_LIMITS.placementCandidates) break;
  }
  return { candidates, enabled };
}

function isRoomIn(sandboxes: HostSandboxes, need: SandboxResources): boolean {
  const { memory, vcpus } = shareTaken(sandboxes, need);
  return memory <= 1 && vcpus <= 1;
}

/**
 * The best of some hosts for a new sandbox (decision 0102): those with capacity first, among them
 * those that handle the most of its disks, then by how full they are and by their `costOf`.
 * @returns at least one host
 * @throws AppError `not_enabled` when no host runs such sandboxes, `no_capacity` when none is large
 *   enough for it, or those that are take none now
 */
export function rankSandboxHosts(hosts: KnownHosts, wishes: SandboxWishes): Host[] {
  const { need, diskHosts, costOf } = wishes;
  const { candidates, enabled } = drawCandidates(hosts, wishes);
  if (candidates.size === 0 && hosts.inRandomOrder().next().done === true) {
    throw new AppError('no_capacity', 'no host is available now');
  }
  if (enabled.length === 0) {
    throw new AppError('not_enabled', 'sandboxes are not enabled on the hosts of this region');
  }
  if (candidates.size === 0) {
    throw enabled.some((host) => couldHold(host, need))
      ? noSandboxCapacity(need)
      : tooLarge(need, enabled);
  }
  const disks = countEach(diskHosts);
  return [...candidates]
    .map((host) => {
      const share = shareTaken(host.load.sandboxes, need);
      return {
        host,
        disks: disks.get(host.hostId) ?? 0,
        isFull: share.memory > 1 || share.vcpus > 1,
        cost: share.memory + costOf(host.hostId),
        vcpus: share.vcpus,
      };
    })
    .sort(
      (a, b) =>
        Number(a.isFull) - Number(b.isFull) ||
        b.disks - a.disks ||
        a.cost - b.cost ||
        a.vcpus - b.vcpus,
    )
    .map(({ host }) => host);
}

export const noSandboxCapacity = (need: SandboxResources): AppError =>
  new AppError(
    'no_capacity',
    `no host has capacity for a sandbox with ${sizeOf(need)} now; try again`,
  );

/** A sandbox's size in the words of the request that creates it. */
const sizeOf = ({ memoryMib, vcpus }: SandboxResources): string =>
  `vcpu_count ${vcpus} and mem_size_mib ${memoryMib - overheadMib(vcpus)}`;

/**
 * The refusal of a sandbox that none of the hosts could hold if it held nothing else. Clients wait
 * it out as any lack of capacity: a larger host may be away, or not in this node's view.
 */
function tooLarge(need: SandboxResources, hosts: readonly HostSandboxes[]): AppError {
  const vcpus = Math.min(need.vcpus, Math.max(...hosts.map((host) => host.vcpus)));
  const memories = hosts.filter((host) => host.vcpus >= vcpus).map(({ memoryMib }) => memoryMib);
  const largest = { vcpus, memoryMib: Math.max(...memories) };
  const isAny =
    vcpus > 0 && largest.memoryMib >= SCHEMA_LIMITS.sandboxMemMibMin + overheadMib(vcpus);
  return new AppError(
    'no_capacity',
    `no host of this region can hold a sandbox with ${sizeOf(need)}` +
      (isAny ? `; the largest that one can hold has ${sizeOf(largest)}` : ''),
  );
}
