import assert from 'node:assert';
import { LIMITS } from '../../shared/limits.ts';

/** Limits of the agent as a process of its host. */
export const SYSTEM_LIMITS = {
  // How long a failed removal, of a deleted sandbox or of what a machine left, waits to be tried
  // again; each time twice as long.
  removalRetryMsMin: 1_000,
  removalRetryMsMax: 60_000,

  // The beat of a host: it tells figures that have changed, and reads what its operator wants of
  // it.
  hostReportMs: 1_000,
  // And how often it tells those that have not, its address and its capacity.
  hostAnnounceMs: 2_000,
  mailboxLengthMax: 256,

  // The operator's program that shuts a host out of the storage (STORAGE_FENCE_COMMAND).
  storageFenceMsMax: 10_000,

  // At start: how long to wait for a former agent's processes to end, and for each further step.
  formerProcessesMsMax: 5_000,
  startStepMsMax: 5_000,
  guardEndMsMax: 20_000,
} as const;

assert(SYSTEM_LIMITS.hostAnnounceMs * 2 < LIMITS.hostTtlMs);
// Work that a host repeats in the directory begins at the same beats.
assert(SYSTEM_LIMITS.hostAnnounceMs % SYSTEM_LIMITS.hostReportMs === 0);
assert(LIMITS.usageWrittenEveryMs % SYSTEM_LIMITS.hostReportMs === 0);
