import assert from 'node:assert';

const KiB = 1024;
const MiB = 1024 * KiB;
const GiB = 1024 * MiB;

/** Every bound of the system in one place; those that WIRE.md or SPEC.md set name their section. */
export const LIMITS = {
  // HTTP
  headerBytesMax: 16 * KiB,
  // What a public server takes must fit when it is passed on in a request of our own.
  internalHeaderBytesMax: 32 * KiB,
  // Of a public port; fewer where the process may have fewer descriptors. See shareDescriptors.
  connectionsMax: 10_000,
  // A peer that we wait for moves this much on average, and never stands still for longer; while
  // others wait for its place, for less. One buffer of a download counts once all of it is gone.
  transferBytesPerSecondMin: 4 * KiB,
  transferStalledMs: 64_000,
  transferCrowdedStalledMs: 10_000,
  requestBodyBytesMax: 8 * MiB, // A command of 1 MiB whose every byte is escaped as \u00XX fits.
  // In the header X-Ignored-Fields; a name is cut before it is percent-encoded.
  ignoredFieldsListedMax: 16,
  ignoredFieldNameLengthMax: 64,
  ignoredFieldsListLengthMax: 1 * KiB,
  pageSizeDefault: 50, // WIRE §1.4
  pageSizeMax: 100,
  unpagedListMax: 1000, // WIRE §1.4: what a client that knows no cursor gets.

  // Accounts
  apiKeysPerAccountMax: 1000,
  disksPerAccountMax: 10_000,
  usersPerDiskMax: 100,
  allowedIpsPerDiskMax: 200,
  clientsPerDiskMax: 100,
  // A client that does not hold a connection counts as connected for this long after a request.
  clientSeenMs: 120_000,
  clientWrittenEveryMs: 30_000,
  clientsRememberedMax: 10_000,

  // Exec, WIRE §5.1
  commandBytesMax: 1 * MiB,
  disksPerExecMax: 32,
  mountPathBytesMax: 1024,
  checkoutsPerMountMax: 32,
  checkoutsPerExecMax: 128, // Each keeps a file open on the host.
  outputBytesPerStreamMax: 16 * MiB,
  // Users and groups of its own, and how many containers can have such; the same on every host, for
  // disks travel (docs/decisions/0025).
  idsPerContainer: 2 ** 16,
  userRanges: 2048,
  // Users of machines, from SANDBOX_UID_BASE on.
  machineUsersMax: 1_000_000,
  // Of what the kernel has for all containers together (kernel.pty.max).
  terminalsPerContainerMax: 128,
  execTimeoutMsMax: 290_000,
  killGraceMs: 5_000,
  // A command that would wait longer for its turn than this is refused; see FairSlots.
  execWaitMsMax: 30_000,
  execsWaitingMax: 1000,
  execsWaitingPerAccountMax: 500,

  // Share links, WIRE §2.1
  shareKeyBytesMax: 1024,
  shareTtlSecondsDefault: 24 * 3600,
  shareTtlSecondsMax: 7 * 24 * 3600,
  signingKeysMax: 4,

  // Downloads
  rangesMax: 16,
  // Two of these for each download, whatever the size of the file.
  downloadBufferBytes: 256 * KiB,
  downloadsPerHostMax: 256,
  downloadsPerNodeMax: 1024,
  // Until the host's first byte: the disk may have to be attached first.
  dataHeadersMsMax: 30_000,
  // A download through control is broken off when its host sends nothing for so long.
  downloadIdleMsMax: 120_000,

  // Object API, WIRE §4; the times are those of S3
  objectKeyBytesMax: 1024,
  objectNameBytesMax: 255, // NAME_MAX of ext4.
  objectBytesMax: 5 * 1024 ** 2 * MiB,
  partBytesMin: 5 * MiB, // All but the last one.
  uploadsPerDiskMax: 10_000,
  uploadAgeMsMax: 7 * 24 * 3_600_000,
  // How long the completion of an upload can be repeated.
  uploadAnswerAgeMsMax: 3_600_000,
  keysPerDeleteMax: 1000,
  signatureClockSkewMsMax: 15 * 60_000,
  presignedSecondsMax: 7 * 24 * 3600,
  objectPutBytesMax: 5 * GiB,
  objectAppendBytesMax: 1 * MiB,
  objectHeadersBytesMax: 2048,
  xmlBodyBytesMax: 2 * MiB,
  keysPerListingMax: 1000,
  partsPerUploadMax: 10_000,
  objectRequestsPerHostMax: 512,
  objectRequestsPerNodeMax: 1024,

  // Fewer threads in libuv's pool let few accounts hold all that disks may use.
  poolThreadsMin: 16,
  // Of the threads that wait for file systems, those that one account's calls hold at a time …
  diskThreadsPerAccountMax: 4,
  // … and how long a call waits for one of them before the caller is told to slow down.
  diskThreadWaitMsMax: 10_000,
  // A directory is read so long at a time; then others have their turn.
  listingSliceMs: 20,
  // The longest file that an append reads to know its MD5; see docs/object-api.md.
  appendHashedBytesMax: 64 * MiB,
  // From the arrival of a request to the first byte of its answer, its body's way here included.
  objectWorkMsMax: 2 * 3_600_000,

  // Grep, WIRE §5.3
  grepPatternBytesMax: 64 * KiB,
  grepResultsDefault: 1000,
  grepResultsMax: 10_000,
  grepConcurrencyDefault: 50,
  grepConcurrencyMax: 100,
  grepSecondsMax: 30,
  // Clients that wait 30 s get their answer.
  grepDurationMsMax: 28_000,
  grepTextBytesMax: 64 * KiB, // As in search.h.
  // All matches of an answer, as JSON; the agent has them in memory several times.
  grepMatchesBytesMax: 8 * MiB,

  // Sandboxes, WIRE §2.7
  sandboxNameLengthMax: 63,
  sandboxVcpusMax: 32,
  sandboxMemMibMin: 256,
  sandboxMemMibMax: 65_536,
  sandboxMemMibDefault: 2048,
  sandboxTtlSecondsMin: 60,
  sandboxTtlSecondsMax: 86_400,
  sandboxConcurrentExecsDefault: 32,
  sandboxConcurrentExecsMax: 1024,
  sandboxesPerAccountMax: 1000,
  imageReferenceLengthMax: 512,
  sandboxBaseImageDefault: 'ubuntu:26.04',
  sandboxEnvironmentBytesMax: 128 * KiB, // Names, values, and two bytes for each.
  // Clients give up after 30 s (WIRE §1.6).
  sandboxWaitMsMax: 20_000,
  // A pause or stop is nearly always over by then; clients would look again only after 500 ms.
  sandboxBriefWaitMs: 300,
  // Between the claim of name and room and the owner's journal.
  sandboxClaimMs: 30_000,
  // A job that its host has not begun by then is dropped.
  sandboxBeginMs: 8_000,
  // How many hosts are asked to take a new sandbox.
  sandboxPlacementsMax: 3,
  sandboxStopGraceMs: 10_000,
  sandboxKillMsMax: 10_000,
  sandboxExitMessageLengthMax: 1000,
  sandboxCheckpointLengthMax: 64,
  dependentForksListedMax: 10, // SPEC "Endpoints", DELETE of a sandbox.
  // When the host goes down, for all sandboxes together.
  sandboxStopAllMs: 120_000,
  // How long a pause or a fork may take: for its beginning and end, and for each MiB of memory, which
  // no disk of any use needs to write.
  sandboxCopyMsBase: 60_000,
  sandboxCopyMsPerMib: 50,
  // One that a time limit asked for and that has failed is tried again.
  sandboxPauseRetryMs: 30_000,
  // An agent that ends waits so long for a pause or a fork; the next one goes on with them.
  sandboxDetachMs: 5_000,
  sandboxResumesAtOnceMax: 8,
  // Forks of forks: every generation is a layer more of disk.
  sandboxForkDepthMax: 16,
  sandboxJobsAtOnceMax: 1000,
  sandboxJobsPerAccountMax: 500,
  sandboxExecsListedMax: 100, // SPEC "Limits".
  sandboxCommandListedMax: 4 * KiB, // Characters.
  sandboxExecTimeoutSecondsMax: 86_400,
  // Of both streams of a command together; the newest are kept, up to twice as much.
  sandboxExecOutputBytes: 4 * MiB,

  slotsPerHostMax: 4096,

  // Idempotency-Key
  idempotencyKeyLengthMax: 255,
  idempotencyTtlMs: 24 * 3_600_000,
  idempotentAnswerBytesMax: 1 * MiB,
  // In Redis: a key takes some 600 bytes, an answer what it has, sealed.
  idempotencyKeysPerAccountMax: 100_000,
  idempotencyKeysMax: 500_000,
  idempotentBytesPerAccountMax: 16 * MiB,
  idempotentBytesMax: 128 * MiB,

  // Between the parts
  // Clocks may differ by as much; each token is remembered for twice as long.
  partTokenTtlMs: 5_000,
  partTokensRememberedMax: 200_000,
  linkFrameBytesMax: 40 * MiB,
  linkHeartbeatMs: 1_000,
  linkSilenceMsMax: 5_000,
  // An agent that no control node reaches gives its disks up after this long.
  linkLossMsMax: 8_000,
  controlNodeTtlMs: 10_000,
  hostAnnounceMs: 2_500,
  hostTtlMs: 15_000,
  directoryRoomCheckMs: 1_000,
  directoryLowTtlMs: 3_000,
  hostJobTimeoutMs: 20_000,
  hostJobsAtOnceMax: 16,
  hostJobsPerAccountMax: 12,
  hostJobsWaitingMax: 1000,
  hostJobsWaitingPerAccountMax: 500,
  // A command that its host has not taken from the queue by then is taken back.
  execTakenMsMax: 5_000,
  diskCreationMsMax: 35_000,
  mailboxLengthMax: 256,

  // Disk lease: the holder gives up this long before the directory lets another host have it.
  // The margin must hold the end of what runs (killGraceMs) and the unmounting.
  diskLeaseTtlMs: 20_000,
  diskLeaseMarginMs: 10_000,
  diskIdleUnmountMs: 60_000,

  // What is done to one disk on the host. Past its time it is given up, and the disk set aside until
  // it has ended all the same.
  diskAttachMsMax: 8_000,
  diskDetachMsMax: 5_000,
  // Making, deleting and describing a disk; at once, so that storage that hangs does not take all
  // threads of the process.
  storageCallMsMax: 18_000,
  storageCallsAtOnceMax: 2,
  // A host whose storage says nothing for so long is not ready.
  storageSilenceMsMax: 5_000,
  loopSweepMsMax: 60_000,

  // At the start: what a former agent left is killed and waited for, its mounts are taken away.
  formerProcessesMsMax: 5_000,
  startStepMsMax: 5_000,
  guardEndMsMax: 20_000,

  // On SIGTERM: what runs may go on for drainMs; the whole shutdown takes at most shutdownMs.
  drainMs: 10_000,
  queueCloseMs: 2_000,
  shutdownMs: 20_000,
} as const;

assert(LIMITS.execsWaitingPerAccountMax < LIMITS.execsWaitingMax);
assert(LIMITS.hostJobsPerAccountMax < LIMITS.hostJobsAtOnceMax);
assert(LIMITS.sandboxJobsPerAccountMax < LIMITS.sandboxJobsAtOnceMax);
assert(LIMITS.idempotentAnswerBytesMax * 2 < LIMITS.idempotentBytesPerAccountMax);
assert(LIMITS.linkHeartbeatMs * 2 < LIMITS.linkSilenceMsMax);
assert(LIMITS.clientWrittenEveryMs * 2 < LIMITS.clientSeenMs);
assert(LIMITS.hostAnnounceMs * 2 < LIMITS.hostTtlMs);
assert(LIMITS.directoryRoomCheckMs * 2 < LIMITS.directoryLowTtlMs);
assert(LIMITS.diskLeaseMarginMs * 2 <= LIMITS.diskLeaseTtlMs);
assert(LIMITS.killGraceMs + LIMITS.diskDetachMsMax <= LIMITS.diskLeaseMarginMs);
assert(LIMITS.storageCallMsMax < LIMITS.hostJobTimeoutMs);
assert(LIMITS.outputBytesPerStreamMax * 2 < LIMITS.linkFrameBytesMax);
assert(
  LIMITS.transferBytesPerSecondMin * LIMITS.transferStalledMs >= LIMITS.downloadBufferBytes * 1000,
);
// A caller who waits 30 s gets the answer (WIRE §1.6), and a claim outlasts what it is for.
assert(LIMITS.sandboxBeginMs + LIMITS.sandboxWaitMsMax < 30_000);
assert(LIMITS.sandboxBeginMs * 2 < LIMITS.sandboxClaimMs);
assert(LIMITS.drainMs + LIMITS.killGraceMs < LIMITS.shutdownMs);
assert(LIMITS.pageSizeDefault <= LIMITS.pageSizeMax);
assert(LIMITS.grepDurationMsMax < LIMITS.grepSecondsMax * 1000);
assert(LIMITS.grepMatchesBytesMax < LIMITS.linkFrameBytesMax);
