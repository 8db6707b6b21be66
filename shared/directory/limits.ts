import { DAY_MS, HOUR_MS, MINUTE_MS, MiB } from '../units.ts';

/** Limits of records in Redis. */
export const DIRECTORY_LIMITS = {
  unpagedListMax: 1000, // For clients that follow no cursor.

  // Accounts
  apiKeysPerAccountMax: 1000,
  // How soon control nodes and hosts notice that an API key was deleted elsewhere.
  apiKeyRememberedMs: 1_000,
  apiKeysRememberedMax: 10_000,
  // About; the oldest go first. Calls that were refused count by themselves.
  activityPerAccountMax: 10_000,
  refusalsPerAccountMax: 1_000,
  // How soon control nodes and hosts notice that the limits of an account were changed.
  accountLimitsReadEveryMs: 2_000,
  accountsRememberedMax: 10_000,
  storageMeasuredEveryMs: 60_000,
  usageKeptMs: 400 * DAY_MS,
  webhooksPerAccountMax: 10,
  webhooksQueuedPerAccountMax: 4_000,
  webhooksQueuedMax: 20_000,
  webhookQueuedMsMax: DAY_MS, // A delivery that was lost counts for so long.
  webhookDeliveriesKept: 100,
  webhookDeliveriesKeptMs: 30 * DAY_MS,
  // How long an answer waits until replicas of Redis have what it tells of.
  replicaConfirmMsMax: 2_000,
  disksPerAccountMax: 10_000,
  clientsPerDiskMax: 100,
  // A client without an open connection counts as connected for this long after its last request.
  clientSeenMs: 120_000,

  sandboxesPerAccountMax: 1000,
  snapshotsPerAccountMax: 100,

  // A claim on the build of an image that was not renewed for so long has ended.
  imageBuildTtlMs: 12_000,
  // How long the directory remembers an image that nobody asks for.
  imageRecordTtlMs: 90 * DAY_MS,
  // The same while it has no good build: callers choose the names, and those of nothing are many.
  imageUnbuiltRecordTtlMs: 60 * MINUTE_MS,

  servicePortsPerSandboxMax: 64, // Found published by services; others are found anew.
  portTokensPerSandboxMax: 1000, // Unexpired ones.
  // For how long the ports that a new sandbox is to have are kept until its owner publishes it:
  // also when the owner is restarted meanwhile.
  sandboxRoutePreparedMs: HOUR_MS,

  // In Redis, a key takes some 600 bytes and an answer its sealed size.
  idempotencyKeysPerAccountMax: 100_000,
  idempotencyKeysMax: 500_000,
  idempotentBytesPerAccountMax: 16 * MiB,
  idempotentBytesMax: 128 * MiB,

  controlNodeTtlMs: 10_000,
  // How often one address may try to join, and how long tokens for that live.
  joinAttemptsPerAddressMax: 20,
  joinAttemptsWithinMs: 60_000,
  joinTokenTtlMsMax: DAY_MS,
  directoryLowTtlMs: 3_000,
  diskCreationMsMax: 35_000,
} as const;
