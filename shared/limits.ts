import assert from 'node:assert';
import { KiB, MiB } from './units.ts';

/**
 * Limits that both tiers know, or several folders of shared/. All others are in the `limits.ts` of
 * the room that they bound. Those that callers can notice are described in docs/: change both
 * together.
 */
export const LIMITS = {
  // HTTP
  headerBytesMax: 16 * KiB,
  // Larger than the former, so that a head that a public server accepted fits when it is forwarded.
  internalHeaderBytesMax: 32 * KiB,
  // Connections of a public port. Fewer when the process has fewer descriptors: see
  // shareDescriptors.
  connectionsMax: 10_000,
  // A peer that we wait for must transfer at this average rate and never stand still for longer
  // than this; the third value applies while others wait for its place. A download's buffer counts
  // as transferred only once all of it was sent.
  transferBytesPerSecondMin: 4 * KiB,
  transferStalledMs: 64_000,
  transferCrowdedStalledMs: 10_000,

  // Control nodes and hosts write their counts this often; a crash loses as much.
  usageWrittenEveryMs: 5_000,
  // How long an answer waits until the change that it tells of is in the audit log.
  auditMsMax: 2_000,

  // How many users and groups a container has of its own, and how many containers can have them.
  // The same on every host, because disks move between hosts (docs/decisions/0025).
  idsPerContainer: 2 ** 16,
  userRanges: 2048,
  // How many users there are for machines, from SANDBOX_UID_BASE on.
  machineUsersMax: 1_000_000,
  // How many sandboxes a host of containers has at most, each with ids like a container's; stopped
  // ones count.
  containerSandboxesMax: 8192,
  // Memory of a sandbox's machine besides the guest's own: QEMU's code and state with its cache of
  // translated code, and each virtual processor's thread.
  machineOverheadMib: 224,
  processorOverheadMib: 8,
  killGraceMs: 5_000,

  secretsOfRingMax: 4,
  connectionTokenTtlMs: 60_000,
  connectionTokenLengthMax: 1024,

  // How long control waits for the host's first byte. The disk may have to be attached first.
  dataHeadersMsMax: 30_000,

  objectPathBytesMax: 4095, // PATH_MAX, without its NUL.

  // By default: how long a guest may take to begin its answer, and threads of the ingress.
  ingressAnswerMs: 120_000,
  ingressThreadsDefaultMax: 4,

  slotsPerHostMax: 4096,

  // Between parts of the cluster
  // Clocks may differ by this much; each token is remembered for twice as long.
  partTokenTtlMs: 5_000,
  partTokensRememberedMax: 200_000,
  linkFrameBytesMax: 40 * MiB,
  traceparentLengthMax: 55,
  linkHeartbeatMs: 1_000,
  linkSilenceMsMax: 5_000,
  // A host that has announced nothing for so long is away.
  hostTtlMs: 15_000,
  hostJobTimeoutMs: 20_000,

  // A host whose storage does not answer for this long is not ready.
  storageSilenceMsMax: 5_000,

  // On SIGTERM: present work may go on for drainMs; the whole shutdown takes at most shutdownMs.
  drainMs: 10_000,
  queueCloseMs: 2_000,
  shutdownMs: 20_000,
} as const;

assert(LIMITS.linkHeartbeatMs * 2 < LIMITS.linkSilenceMsMax);
assert(LIMITS.drainMs + LIMITS.killGraceMs < LIMITS.shutdownMs);
