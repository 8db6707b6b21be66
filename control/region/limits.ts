import assert from 'node:assert';
import { DIRECTORY_LIMITS } from '../../shared/directory/limits.ts';

/** Limits of hosts, their links, and deliveries to webhooks. */
export const REGION_LIMITS = {
  // Attempts grow apart from webhookRetryMsMin on, about ten minutes altogether.
  webhookAttemptsMax: 8,
  webhookRetryMsMin: 5_000,
  webhookAnswerMsMax: 10_000,
  webhooksAtOnceMax: 64,
  webhooksAtOncePerAccountMax: 8,
  // An attempt beyond those waits for so long, and so much longer for each delivery of its account.
  webhookTurnMs: 500,
  webhookTurnMsPerDelivery: 10,

  downloadsPerNodeMax: 1024,
  objectRequestsPerNodeMax: 1024,

  // How long a creation waits for what comes of another one of the same name.
  nameClaimWaitMs: 3_000,
  // How many hosts with room are looked at for new work, of which the best is taken.
  placementCandidates: 8,
  // Placements that a node remembers: accounts, images and shapes, each with the hosts that were
  // chosen last.
  placementKeysRememberedMax: 4096,
  placementsRememberedMax: 16,

  // Requests for files, and watches, that pass this node at the same time.
  filesPerNodeMax: 1024,
  watchesPerNodeMax: 1024,

  // How long a request for a link may take, and when a host that was asked in vain is asked again.
  linkRequestMsMax: 3_000,
  linkRequestAgainMs: 1_000,
  // How long a link that was asked for is kept without use.
  spareLinkMs: 60_000,
  directorySpaceCheckMs: 1_000,
  // A command that its host has not taken from the queue within this time is taken back.
  execTakenMsMax: 5_000,
} as const;

// Deliveries to receivers that hang are over before they count no more.
assert(
  (DIRECTORY_LIMITS.webhooksQueuedPerAccountMax / REGION_LIMITS.webhooksAtOncePerAccountMax) *
    (REGION_LIMITS.webhookAttemptsMax * REGION_LIMITS.webhookAnswerMsMax) <
    DIRECTORY_LIMITS.webhookQueuedMsMax,
);
assert(REGION_LIMITS.directorySpaceCheckMs * 2 < DIRECTORY_LIMITS.directoryLowTtlMs);
