import { readFileSync } from 'node:fs';
import { LIMITS } from '../limits.ts';

/**
 * How many file descriptors this process may have open. Node raises its soft limit to the hard
 * limit at start, so this is what `LimitNOFILE`, `ulimit -Hn` or `prlimit` sets.
 */
export function descriptorLimit(): number {
  const limits = readFileSync('/proc/self/limits', 'utf8');
  const [, soft = ''] = /^Max open files\s+(\d+|unlimited)/mu.exec(limits) ?? [];
  return soft === 'unlimited' ? Number.MAX_SAFE_INTEGER : Number(soft);
}

/** How many transfers a process serves at the same time when it has enough descriptors. */
export interface PermitsMax {
  readonly objectRequests: number;
  readonly downloads: number;
}

export interface DescriptorShares {
  /** Connections of callers. */
  readonly publicConnections: number;
  /** Connections of callers of sandboxes' ports, each with one into a sandbox beside it. */
  readonly ingressConnections: number;
  /** Connections of other parts of the cluster. */
  readonly internalConnections: number;
  /**
   * Requests of the object API, each with a file or a connection of its own besides its caller's.
   */
  readonly objectRequests: number;
  readonly downloads: number;
}

/**
 * Divides the descriptors so that connections, however many arrive, leave at least a quarter to the
 * process itself: journal, disks, containers, machines, links and Redis.
 */
export const shareDescriptors = (limit: number, most: PermitsMax): DescriptorShares => ({
  publicConnections: Math.min(LIMITS.connectionsMax, Math.floor((limit * 3) / 8)),
  ingressConnections: Math.min(LIMITS.connectionsMax, Math.floor(limit / 16)),
  internalConnections: Math.min(LIMITS.connectionsMax, Math.floor(limit / 4)),
  objectRequests: Math.min(most.objectRequests, Math.floor(limit / 16)),
  downloads: Math.min(most.downloads, Math.floor(limit / 32)),
});
