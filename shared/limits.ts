import assert from 'node:assert';

const KiB = 1024;
const MiB = 1024 * KiB;

/** Every bound of the system in one place; those that WIRE.md or SPEC.md set name their section. */
export const LIMITS = {
  // HTTP
  requestBodyBytesMax: 8 * MiB, // A command of 1 MiB whose every byte is escaped as \u00XX fits.
  pageSizeDefault: 50, // WIRE §1.4
  pageSizeMax: 100,
  unpagedListMax: 1000, // WIRE §1.4: what a client that knows no cursor gets.

  // Accounts
  apiKeysPerAccountMax: 1000,
  disksPerAccountMax: 10_000,
  usersPerDiskMax: 100,
  allowedIpsPerDiskMax: 200,

  // Objects as files, WIRE §4.5
  objectKeyBytesMax: 1024,
  objectNameBytesMax: 255, // NAME_MAX of ext4.
  objectBytesMax: 5 * 1024 ** 2 * MiB,
  partNumberMax: 10_000,
  partBytesMin: 5 * MiB, // All but the last one.
  uploadsPerDiskMax: 10_000,
  uploadAgeMsMax: 7 * 24 * 3_600_000,
  // How long the completion of an upload can be repeated.
  uploadAnswerAgeMsMax: 3_600_000,

  // Exec, WIRE §5.1
  commandBytesMax: 1 * MiB,
  disksPerExecMax: 32,
  mountPathBytesMax: 1024,
  checkoutsPerMountMax: 32,
  outputBytesPerStreamMax: 16 * MiB,
  execTimeoutMsMax: 290_000,
  killGraceMs: 5_000,
  // A command that would wait longer for its turn than this is refused; see ExecSlots.
  execWaitMsMax: 30_000,
  execsWaitingMax: 1000,
  execsWaitingPerAccountMax: 500,

  // Idempotency-Key
  idempotencyKeyLengthMax: 255,
  idempotencyTtlMs: 24 * 3_600_000,
  idempotentAnswerBytesMax: 1 * MiB,

  // Between the parts
  linkFrameBytesMax: 40 * MiB,
  linkHeartbeatMs: 1_000,
  linkSilenceMsMax: 5_000,
  // An agent that no control node reaches gives its disks up after this long.
  linkLossMsMax: 8_000,
  controlNodeTtlMs: 10_000,
  directoryRoomCheckMs: 1_000,
  directoryLowTtlMs: 3_000,
  hostJobTimeoutMs: 20_000,
  // A command that its host has not taken from the queue by then is taken back.
  execTakenMsMax: 5_000,
  diskCreationMsMax: 35_000,
  mailboxLengthMax: 256,

  // Disk lease: the holder gives up this long before the directory lets another host have it.
  // The margin must hold the end of what runs (killGraceMs) and the unmounting.
  diskLeaseTtlMs: 20_000,
  diskLeaseMarginMs: 10_000,
  diskIdleUnmountMs: 60_000,

  // On SIGTERM: what runs may go on for drainMs; the whole shutdown takes at most shutdownMs.
  drainMs: 10_000,
  queueCloseMs: 2_000,
  shutdownMs: 20_000,
} as const;

assert(LIMITS.linkHeartbeatMs * 2 < LIMITS.linkSilenceMsMax);
assert(LIMITS.directoryRoomCheckMs * 2 < LIMITS.directoryLowTtlMs);
assert(LIMITS.diskLeaseMarginMs * 2 <= LIMITS.diskLeaseTtlMs);
assert(LIMITS.killGraceMs * 2 <= LIMITS.diskLeaseMarginMs);
assert(LIMITS.outputBytesPerStreamMax * 2 < LIMITS.linkFrameBytesMax);
assert(LIMITS.drainMs + LIMITS.killGraceMs < LIMITS.shutdownMs);
assert(LIMITS.pageSizeDefault <= LIMITS.pageSizeMax);
