import assert from 'node:assert';
import { LIMITS } from '../../shared/limits.ts';

/** Limits of jobs and links. */
export const LINK_LIMITS = {
  // Connection keys of a control node that is gone are kept this much longer than a token lives.
  connectionKeySlackMs: 30_000,

  sandboxJobsAtOnceMax: 1000,
  sandboxJobsPerAccountMax: 500,

  // In a large region a host links to this many control nodes, whatever they want.
  linksPerHostMin: 2,
  // An agent that no control node reaches for this long releases its disks.
  linkLossMsMax: 8_000,
  hostJobsAtOnceMax: 16,
  hostJobsPerAccountMax: 12,
  hostJobsWaitingMax: 1000,
  hostJobsWaitingPerAccountMax: 500,
} as const;

assert(LINK_LIMITS.hostJobsPerAccountMax < LINK_LIMITS.hostJobsAtOnceMax);
assert(LINK_LIMITS.sandboxJobsPerAccountMax < LINK_LIMITS.sandboxJobsAtOnceMax);
// A node that has not noticed yet that its link is lost, with a clock that is ahead, still signs.
assert(LIMITS.linkSilenceMsMax + LIMITS.partTokenTtlMs < LINK_LIMITS.connectionKeySlackMs);
