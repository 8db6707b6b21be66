import { createHash } from 'node:crypto';
import type { ControlNode } from '../../shared/directory/control-nodes.ts';
import { LINK_LIMITS } from './limits.ts';

const BYTES = 6;

/** A number from 0 to 1 that always is the same for this host and node, and else is random. */
function scoreOf(hostId: string, nodeId: string): number {
  const digest = createHash('sha256').update(`${hostId} ${nodeId}`).digest();
  return digest.readUIntBE(0, BYTES) / 2 ** (8 * BYTES);
}

/**
 * Chooses the control nodes that a host links to by itself (decision 0102): the few with the lowest
 * scores, so that it always has some, and those whose share of the hosts it belongs to. Without any
 * exchange between hosts each node gets its share, and a node that comes or goes moves no other
 * link (rendezvous hashing: Thaler and Ravishankar, 1998).
 * @returns the ids of the nodes
 */
export function chooseNodes(hostId: string, nodes: readonly ControlNode[]): ReadonlySet<string> {
  const chosen = nodes
    .map(({ nodeId, linkShare }) => ({ nodeId, linkShare, score: scoreOf(hostId, nodeId) }))
    .toSorted((a, b) => a.score - b.score)
    .filter(
      ({ linkShare, score }, rank) => rank < LINK_LIMITS.linksPerHostMin || score < linkShare,
    );
  return new Set(chosen.map(({ nodeId }) => nodeId));
}
