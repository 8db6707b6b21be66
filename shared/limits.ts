import assert from 'node:assert';
import { DAY_MS, GiB, HOUR_MS, KiB, MINUTE_MS, MiB, TiB } from './units.ts';

/**
 * Every limit of the system. Those that callers can notice are described in docs/api.md, the
 * section of the resource, and in docs/object-api.md: change both together.
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
  requestBodyBytesMax: 8 * MiB, // A command of 1 MiB whose every byte is escaped as \u00XX fits.
  // Bodies that a control node has under way: beyond the first bytes of each, accounts share pieces
  // of memory, 128 MiB in all.
  bodyUncountedBytesMax: 16 * KiB,
  bodyPieceBytes: 64 * KiB,
  bodyPiecesPerNodeMax: 2048,
  // In the header X-Ignored-Fields; a name is cut before it is percent-encoded.
  ignoredFieldsListedMax: 16,
  ignoredFieldNameLengthMax: 64,
  ignoredFieldsListLengthMax: 1 * KiB,
  pageSizeDefault: 50,
  pageSizeMax: 100,
  unpagedListMax: 1000, // For clients that follow no cursor.

  mcpCallsPerNodeMax: 512, // Concurrent calls of tools for language models.

  // Accounts
  apiKeysPerAccountMax: 1000,
  // The longest life that a disk user or a port token may be given.
  credentialTtlMsMax: 8760 * HOUR_MS,
  // How soon control nodes and hosts notice that an API key was deleted elsewhere.
  apiKeyRememberedMs: 1_000,
  apiKeysRememberedMax: 10_000,
  // About; the oldest go first. Calls that were refused count by themselves.
  activityPerAccountMax: 10_000,
  refusalsPerAccountMax: 1_000,
  // How soon control nodes and hosts notice that the limits of an account were changed.
  accountLimitsReadEveryMs: 2_000,
  accountsRememberedMax: 10_000,
  // Control nodes and hosts write their counts this often; a crash loses as much.
  usageWrittenEveryMs: 5_000,
  storageMeasuredEveryMs: 60_000,
  usageKeptMs: 400 * DAY_MS,
  // Webhooks: attempts grow apart from webhookRetryMsMin on, about ten minutes altogether.
  webhooksPerAccountMax: 10,
  webhookAttemptsMax: 8,
  webhookRetryMsMin: 5_000,
  webhookAnswerMsMax: 10_000,
  webhooksAtOnceMax: 64,
  webhooksAtOncePerAccountMax: 8,
  // An attempt beyond those waits for so long, and so much longer for each delivery of its account.
  webhookTurnMs: 500,
  webhookTurnMsPerDelivery: 10,
  webhooksQueuedPerAccountMax: 4_000,
  webhooksQueuedMax: 20_000,
  webhookQueuedMsMax: DAY_MS, // A delivery that was lost counts for so long.
  webhookDeliveriesKept: 100,
  webhookDeliveriesKeptMs: 30 * DAY_MS,
  // How long an answer waits until the change that it tells of is in the audit log.
  auditMsMax: 2_000,
  // For how long refused calls without a key are added up for the audit log's file, and of how many
  // addresses.
  auditStrangersSummedMs: 60_000,
  auditStrangersMax: 1_000,
  // Lines that wait for the audit log's file; further ones are reported as lost.
  auditLinesWaitingMax: 10_000,
  // For how long deletions of single objects are added up for the activity, and of how many users.
  deletionsSummedMs: 60_000,
  deletionSumsMax: 10_000,
  // How long an answer waits until replicas of Redis have what it tells of.
  replicaConfirmMsMax: 2_000,
  disksPerAccountMax: 10_000,
  usersPerDiskMax: 100,
  allowedIpsPerDiskMax: 200,
  allowedOriginsPerDiskMax: 50,
  clientsPerDiskMax: 100,
  // A client without an open connection counts as connected for this long after its last request.
  clientSeenMs: 120_000,
  clientWrittenEveryMs: 30_000,
  clientsRememberedMax: 10_000,

  // Exec
  commandBytesMax: 1 * MiB,
  disksPerExecMax: 32,
  mountPathBytesMax: 1024,
  mountsPerSandboxMax: 16,
  nfsPort: 2049,
  // A client that its server has not heard of for so long loses its locks.
  nfsLeaseSeconds: 60,
  // Memory of one NFS server, with what it has cached of the disks.
  nfsServerBytesMax: 512 * MiB,
  nfsServerThreadsMax: 512,
  // How often an agent looks whether the NFS server of a running machine is there.
  nfsServerLookMs: 2_000,
  // How long a guest tries to mount a disk.
  guestMountMsMax: 60_000,
  checkoutsPerMountMax: 32,
  checkoutsPerExecMax: 128, // Each keeps a file open on the host.
  outputBytesPerStreamMax: 16 * MiB,
  // How many users and groups a container has of its own, and how many containers can have them.
  // The same on every host, because disks move between hosts (docs/decisions/0025).
  idsPerContainer: 2 ** 16,
  userRanges: 2048,
  // How many users there are for machines, from SANDBOX_UID_BASE on.
  machineUsersMax: 1_000_000,
  // How many sandboxes a host of containers has at most, each with ids like a container's; stopped
  // ones count.
  containerSandboxesMax: 8192,
  // Threads count. Of containers; a virtual machine has its own bound.
  processesPerSandboxMax: 2048,
  // The kernel has one number of terminals for all containers together (kernel.pty.max).
  terminalsPerContainerMax: 128,
  execTimeoutMsMax: 290_000,
  killGraceMs: 5_000,
  // A command that would probably wait longer than this for its turn is refused; see FairTurns.
  execWaitMsMax: 30_000,
  execsWaitingMax: 1000,
  execsWaitingPerAccountMax: 500,

  // Share links
  shareKeyBytesMax: 1024,
  shareTtlSecondsDefault: 24 * 3600,
  shareTtlSecondsMax: 7 * 24 * 3600,
  secretsOfRingMax: 4,

  // Sessions of the console
  consoleSessionMs: 12 * 3600_000,
  consoleCookieLengthMax: 1024,

  // Sandbox connections
  connectionTokenTtlMs: 60_000,
  connectionTokenLengthMax: 1024,
  // For how much longer than a token lives an agent keeps the keys of a control node that is gone.
  connectionKeySlackMs: 30_000,

  // Downloads
  rangesMax: 16,
  // Each download has two such buffers, whatever the size of its file.
  downloadBufferBytes: 256 * KiB,
  // Objects up to this size are read by the call that opens them.
  objectReadAtOnceBytesMax: 64 * KiB,
  downloadsPerHostMax: 256,
  downloadsPerNodeMax: 1024,
  // How long control waits for the host's first byte. The disk may have to be attached first.
  dataHeadersMsMax: 30_000,
  // A download through control is broken off when its host sends nothing for this long.
  downloadIdleMsMax: 120_000,

  // Object API; sizes and times are those of S3
  objectKeyBytesMax: 1024,
  objectPathBytesMax: 4095, // PATH_MAX, without its NUL.
  objectNameBytesMax: 255, // NAME_MAX of ext4.
  objectBytesMax: 5 * TiB,
  partBytesMin: 5 * MiB, // All but the last one.
  uploadsPerDiskMax: 10_000,
  uploadAgeMsMax: 7 * DAY_MS,
  // For how long the completion of an upload can be repeated.
  uploadAnswerAgeMsMax: HOUR_MS,
  keysPerDeleteMax: 1000,
  // Unsealed tokens of disk users that an agent keeps; beyond it all are forgotten.
  diskTokensRememberedMax: 1000,
  signatureClockSkewMsMax: 15 * MINUTE_MS,
  presignedSecondsMax: 7 * 24 * 3600,
  objectPutBytesMax: 5 * GiB,
  // Limits of a form that uploads an object: one field, all fields, and everything before the file,
  // which carries the credentials: its time is that of a head, and so many are read at once.
  formFieldsBytesMax: 20 * KiB,
  formFieldsMax: 100,
  formHeadBytesMax: 32 * KiB,
  formHeadMsMax: 20_000,
  formHeadsPerHostMax: 256,
  objectAppendBytesMax: 1 * MiB,
  objectMetadataBytesMax: 2048, // Names and values of x-amz-meta-*.
  // All stored headers as they are kept, within the extended attributes of a file.
  objectHeadersBytesMax: 2560,
  xmlBodyBytesMax: 2 * MiB,
  keysPerListingMax: 1000,
  keysWalkedPerPageMax: 50_000, // With a delimiter other than a slash.
  partsPerUploadMax: 10_000,
  objectRequestsPerHostMax: 512,
  objectRequestsPerNodeMax: 1024,

  // With fewer threads in libuv's pool, a few accounts could hold all those that disks may use.
  poolThreadsMin: 16,
  // How many of the threads for file systems one account's calls may hold at a time.
  diskThreadsPerAccountMax: 4,
  // How long a call waits for such a thread before its caller is told to slow down.
  diskThreadWaitMsMax: 10_000,
  // A directory is read for this long at a time; then other accounts have their turn.
  listingSliceMs: 20,
  // The longest file whose MD5 an append computes by reading it; see docs/object-api.md.
  appendHashedBytesMax: 64 * MiB,
  // A request ends when nothing of its body has arrived for this long and no answer has begun.
  objectIdleMsMax: 2 * HOUR_MS,

  // Grep
  grepPatternBytesMax: 64 * KiB,
  grepResultsDefault: 1000,
  grepResultsMax: 10_000,
  grepConcurrencyDefault: 50,
  grepConcurrencyMax: 100,
  grepSecondsMax: 30,
  // Clients that give up after 30 s still get the answer.
  grepDurationMsMax: 28_000,
  // The same as in search.h. All matches of an answer, as JSON. The agent has several copies of
  // them in memory.
  grepTextBytesMax: 64 * KiB,
  grepMatchesBytesMax: 8 * MiB,

  // Sandboxes
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
  snapshotsPerAccountMax: 100,
  // Size of a snapshot with memory that machines are prewarmed from: prewarmed ones take no
  // capacity.
  snapshotPrewarmedBytesMax: 256 * MiB,
  imageReferenceLengthMax: 512,
  sandboxEnvironmentBytesMax: 128 * KiB, // Names and values, and two bytes per variable.
  sandboxVariablesMax: 2048,
  // How long `wait=true` holds an answer: clients give up after 30 s (docs/api.md, Choices).
  sandboxWaitMsMax: 20_000,
  // A stop or a snapshot is nearly always over by then; clients would look again only after 500 ms.
  sandboxBriefWaitMs: 300,
  // How long the name and the capacity of a new sandbox stay reserved until its owner journals it.
  sandboxClaimMs: 30_000,
  // How long a creation waits for what comes of another one of the same name.
  nameClaimWaitMs: 3_000,
  // A job that its host has not begun within this time is dropped.
  sandboxBeginMs: 8_000,
  // How many hosts with room are looked at for new work, of which the best is taken.
  placementCandidates: 8,
  // How many hosts are asked, one after the other, to make a new disk.
  diskPlacementsMax: 3,
  // Placements that a node remembers: accounts, images and shapes, each with the hosts that were
  // chosen last.
  placementKeysRememberedMax: 4096,
  placementsRememberedMax: 16,
  // How many hosts are asked, one after the other, to take a new sandbox.
  sandboxPlacementsMax: 3,
  sandboxStopGraceMs: 10_000,
  sandboxKillMsMax: 10_000,
  sandboxExitMessageLengthMax: 1000,
  copyHookBytesMax: 8 * KiB,
  copyHookMsMax: 10_000,
  sandboxCheckpointLengthMax: 64,
  dependentForksListedMax: 10,
  // How long all sandboxes together may take to pause when the host goes down.
  sandboxStopAllMs: 120_000,
  // How long a pause or a fork may take: a base, and a time per MiB of memory that any usable disk
  // stays below.
  sandboxCopyMsBase: 60_000,
  sandboxCopyMsPerMib: 50,
  // A pause that a time limit asked for and that failed is tried again after this long.
  sandboxPauseRetryMs: 30_000,
  // How long a failed removal, of a deleted sandbox or of what a machine left, waits to be tried
  // again; each time twice as long.
  removalRetryMsMin: 1_000,
  removalRetryMsMax: 60_000,
  // How long an agent that shuts down waits for a pause or fork; the next agent recovers it.
  sandboxDetachMs: 5_000,
  // How long a host that goes down waits for a sandbox that it is just taking.
  sandboxTakenMsMax: 5_000,
  sandboxResumesAtOnceMax: 8,
  // How deep forks of forks may go: every generation adds a layer to the disk.
  sandboxForkDepthMax: 16,
  sandboxJobsAtOnceMax: 1000,
  sandboxJobsPerAccountMax: 500,
  sandboxExecsListedMax: 100,
  sandboxCommandListedMax: 4 * KiB, // In characters.
  // How long a command waits for a guest that does not answer, as after a restart of its agent.
  sandboxExecGuestMsMax: 5_000,
  sandboxExecTimeoutSecondsMax: 86_400,
  // For both streams of a command together. The newest bytes are kept, up to twice as many.
  sandboxExecOutputBytes: 4 * MiB,

  // Images
  imageLayersMax: 256,
  imagePlatformsMax: 256, // In one index.
  imageManifestBytesMax: 4 * MiB,
  imageConfigBytesMax: 4 * MiB,
  imageEnvironmentBytesMax: 64 * KiB,
  // With those of a sandbox, no more than a guest takes (docs/guest-protocol.md).
  imageVariablesMax: 1024,
  imageCredentialLengthMax: 8 * KiB,
  imageBuildMsMax: 15 * MINUTE_MS,
  sandboxImageWaitMsMax: 60 * MINUTE_MS, // For a turn to have its image built.
  imageBuildsWaitingMax: 64, // On one host.
  imageBuildsWaitingPerAccountMax: 16,
  // A host that builds an image renews its claim this often; a claim that is as old as this has
  // ended.
  imageBuildRenewMs: 2_000,
  imageBuildTtlMs: 12_000,
  // How long the directory remembers an image that nobody asks for.
  imageRecordTtlMs: 90 * DAY_MS,
  // The same while it has no good build: callers choose the names, and those of nothing are many.
  imageUnbuiltRecordTtlMs: 60 * MINUTE_MS,

  // Network policies
  networkTargetLengthMax: 255,
  networkRulesPerListMax: 256,
  networkDrainPatternsMax: 64,
  networkHeadersPerRuleMax: 16,
  networkHeaderNameLengthMax: 128,
  networkHeaderValueLengthMax: 8 * KiB,
  networkForwardUrlLengthMax: 2 * KiB,
  networkDrainMsMax: 10 * MINUTE_MS, // How long a pause waits for requests that its policy names.
  networkAddressesKeptMax: 2_048, // Addresses of a policy's names, over a pause and in a copy.
  networkPolicyBytesMax: 128 * KiB, // Bytes of JSON, within a job and a row of the journal.

  // Process sessions
  // How long a client's request waits for a guest that does not answer.
  sessionGuestMsMax: 30_000,
  sessionsPerHostMax: 10_000,
  // Connections of one sandbox besides those that may be attached: each may hold a whole message.
  sessionsUnattachedMax: 64,
  sessionFirstMessageMs: 10_000,
  // A text frame, or a frame of input, of which clients send at most 1 MiB.
  sessionMessageBytesMax: 2 * MiB,
  // Input of a client of version 2 that the process has not taken.
  sessionInputWindowBytes: 2 * MiB,
  // How far ahead of what a client of version 2 has read it may be sent output.
  sessionWindowBytes: MiB,
  sessionWindowBytesMin: 64 * KiB,
  sessionWindowBytesMax: 64 * MiB,
  sessionPingMs: 30_000,
  sessionCheckMs: 1_000,
  // Two pings that were not answered.
  sessionSilenceMsMax: 75_000,
  // How long a client may take nothing of the output that waits for it.
  sessionStallMsMax: 30_000,
  // Input that waits for a process that does not read, from all of its clients together.
  sessionInputWaitingBytesMax: 4 * MiB,
  // The same from clients that have left, for all processes of a sandbox together.
  sessionInputLeftBytesMax: 16 * MiB,

  // Files of sandboxes
  filePathBytesMax: 4095, // PATH_MAX of Linux without its NUL.
  fileListDefault: 1000,
  fileListMax: 5000,
  fileCursorLengthMax: 8 * KiB,
  // Requests for files of one sandbox at the same time, and of all sandboxes of a host or of a
  // node.
  filesPerSandboxMax: 16,
  filesPerHostMax: 256,
  filesPerNodeMax: 1024,
  watchesPerSandboxMax: 16,
  watchesPerHostMax: 256,
  watchesPerNodeMax: 1024,
  watchKeepAliveMs: 15_000,
  // How long a guest may take to begin its answer, and then to go on with it.
  fileAnswerMsMax: 60_000,

  // Ports of sandboxes
  // Ports that the answer to the deletion of a key names.
  endedPortsShownMax: 1000,
  portsPerSandboxMax: 128, // Exposed ones.
  servicePortsPerSandboxMax: 64, // Found published by services; others are found anew.
  portTokensPerSandboxMax: 1000, // Unexpired ones.
  portTokenLengthMax: 256,
  // Connections that are kept to, or made to, one port; further requests wait for one.
  ingressConnectionsPerPortMax: 1024,
  // By default: how long a guest may take to begin its answer, and threads of the ingress.
  ingressAnswerMs: 120_000,
  ingressThreadsDefaultMax: 4,
  // How long a connection may take to be made, and a sandbox to come up for a request.
  ingressOpenMsMax: 5_000,
  ingressWakeMsMax: 60_000,
  // How long a request waits for a service that starts with the sandbox that it has woken.
  ingressServiceMsMax: 5_000,
  ingressAskEveryMs: 100,
  // For how long the ports that a new sandbox is to have are kept until its owner publishes it:
  // also when the owner is restarted meanwhile.
  sandboxRoutePreparedMs: HOUR_MS,

  slotsPerHostMax: 4096,
  // A router and its host have an entry for each connection of their sandboxes (nf_conntrack_max).
  connectionsPerSandboxMax: 4096,
  // New ones over TCP, whose entries stay for a while after their end and are not counted then.
  newConnectionsPerSecondMax: 300,
  newConnectionsBurstMax: 5000,
  // To the resolver that all sandboxes of a host share. It keeps what nobody answers for 10 s, and
  // the kernel counts what was answered for up to a second.
  dnsPacketsPerSecondMax: 1000,
  dnsQuestionsPerSandboxMax: 400,
  dnsQuestionsPerHostMax: 8000,

  // Idempotency-Key
  idempotencyKeyLengthMax: 255,
  idempotencyTtlMs: DAY_MS,
  idempotentAnswerBytesMax: 1 * MiB,
  // Requests that wait for the answer to another one with the same key: each looks for it in Redis.
  idempotentWaitsPerNodeMax: 512,
  // In Redis, a key takes some 600 bytes and an answer its sealed size.
  idempotencyKeysPerAccountMax: 100_000,
  idempotencyKeysMax: 500_000,
  idempotentBytesPerAccountMax: 16 * MiB,
  idempotentBytesMax: 128 * MiB,

  // Between parts of the cluster
  // Clocks may differ by this much; each token is remembered for twice as long.
  partTokenTtlMs: 5_000,
  partTokensRememberedMax: 200_000,
  linkFrameBytesMax: 40 * MiB,
  traceparentLengthMax: 55,
  linkHeartbeatMs: 1_000,
  linkSilenceMsMax: 5_000,
  // In a large region a host links to this many control nodes, whatever they want.
  linksPerHostMin: 2,
  // How long a request for a link may take, and when a host that was asked in vain is asked again.
  linkRequestMsMax: 3_000,
  linkRequestAgainMs: 1_000,
  // How long a link that was asked for is kept without use.
  spareLinkMs: 60_000,
  // An agent that no control node reaches for this long releases its disks.
  linkLossMsMax: 8_000,
  controlNodeTtlMs: 10_000,
  // The beat of a host: it tells figures that have changed, and reads what its operator wants of
  // it.
  hostReportMs: 1_000,
  // And how often it tells those that have not, its address and its capacity.
  hostAnnounceMs: 2_000,
  // How often a host looks whether sandboxes are to be given up or taken over.
  sandboxMoveLookMs: 1_000,
  // How often a host looks for copies of images on shared storage that no machine needs.
  sandboxBasesLookMs: 60_000,
  // How often it looks for what removed hosts have left there.
  sandboxClearLookMs: 60_000,
  // For how long a sandbox is offered to other hosts, and how long after that again.
  sandboxOfferMs: 10_000,
  sandboxOfferAgainMs: 60_000,
  sandboxOfferAgainMsMax: 600_000,
  // For this long the answer to an order waits until the host follows it.
  hostOrderWaitMsMax: 5_000,
  hostTtlMs: 15_000,
  /** Sandboxes and disks that a host's report names by id; the counts are of all. */
  hostReportIdsMax: 10,
  // How often one address may try to join, and how long tokens for that live.
  joinAttemptsPerAddressMax: 20,
  joinAttemptsWithinMs: 60_000,
  joinBodyBytesMax: 1 * KiB, // Anyone may send it: no key is asked for.
  joinTokenTtlMsMax: 24 * 3_600_000,
  directorySpaceCheckMs: 1_000,
  directoryLowTtlMs: 3_000,
  hostJobTimeoutMs: 20_000,
  hostJobsAtOnceMax: 16,
  hostJobsPerAccountMax: 12,
  hostJobsWaitingMax: 1000,
  hostJobsWaitingPerAccountMax: 500,
  // A command that its host has not taken from the queue within this time is taken back.
  execTakenMsMax: 5_000,
  diskSweepMs: 10_000, // How often hosts finish deletions that have failed.
  diskCreationMsMax: 35_000,
  mailboxLengthMax: 256,
  diskUseWrittenEveryMs: 1_000,
  diskMeasureMsMax: 500,

  // Disk lease: the holder gives up this margin before the lease expires and another host can have
  // it. Within the margin it ends what uses the disk (killGraceMs) and unmounts it.
  diskLeaseTtlMs: 20_000,
  diskLeaseMarginMs: 10_000,
  diskIdleUnmountMs: 60_000,
  // Disks that a host has attached at once. The others of its 1024 loop devices (disk-loop.c) are
  // for sandboxes in containers, images and builds. The second is for an account that is alone.
  disksAttachedMax: 768,
  disksAttachedPerAccountMax: 576,

  // Object storage behind disks (docs/bucket-disks.md).
  bucketAttemptsMax: 3, // Attempts of one request, by the SDK.
  bucketConnectMsMax: 5_000,
  bucketSilenceMsMax: 15_000,
  bucketWorkMsMax: 300_000, // Silence before an answer that needs an object to be put together or copied.
  bucketCheckMsMax: 8_000,
  bucketRecheckMs: 15_000,
  bucketRechecksMax: 1_000,
  bucketReportsMax: 10_000, // Disks whose last report is remembered.
  bucketKeysMax: 1_000_000, // Keys of one disk, and files on it.
  bucketKeyBytesMax: 256 * MiB, // All keys of a disk together.
  bucketPagesMax: 10_000, // Pages of a listing; storage may send some that are not full.
  bucketPageMsMax: 120_000, // Until one of them has come.
  bucketPaceBytes: MiB, // A fetch is given up unless so much comes within the next time.
  bucketPaceMs: 120_000,
  bucketProblemsShownMax: 20,
  bucketConflictsMax: 1_000,
  bucketRefusalsMax: 1_000, // Files of one disk that the bucket does not take.
  bucketRefusalPauseMsMax: 60_000, // Until one of them is tried again.
  bucketPauseMsMin: 500, // Between attempts; doubled where they go on for longer.
  bucketFillMsMax: 30_000, // How long the open of a placeholder waits for its object to begin.
  bucketRoomMsMax: 10_000, // How long it waits for other files to be given up.
  bucketAttachMsMax: 5_000, // How long the first use waits for a bucket that was listed before.
  bucketDetachMsMax: 3_000,
  bucketTickMs: 3_000, // How often what was written without a command is uploaded.
  bucketRefreshMs: 30_000, // How often changes by others are looked for.
  bucketFetchesMax: 8,
  bucketFetchesPerAccountMax: 6,
  bucketTurnMsMax: 600_000, // How long the open of a placeholder waits for one of these turns.
  // Placeholders that uploads open at a time: fewer than the threads for file systems.
  bucketOpensMax: 8,
  bucketOpensPerAccountMax: 2,

  // Operations on one disk. One that takes longer is abandoned, and the disk is set aside until the
  // abandoned operation has ended.
  diskAttachMsMax: 8_000,
  diskDetachMsMax: 5_000,
  // Whether somebody still has a disk attached, and whether that is this host.
  diskProbeMsMax: 3_000,
  // The operator's program that shuts a host out of the storage (STORAGE_FENCE_COMMAND).
  storageFenceMsMax: 10_000,
  // Creating, deleting and describing a disk. Only so many at a time, so that storage that hangs
  // does not take all threads of the process.
  storageCallMsMax: 18_000,
  storageCallsAtOnceMax: 2,
  // A host whose storage does not answer for this long is not ready.
  storageSilenceMsMax: 5_000,
  loopSweepMsMax: 60_000,

  // At start: how long to wait for a former agent's processes to end, and for each further step.
  formerProcessesMsMax: 5_000,
  startStepMsMax: 5_000,
  guardEndMsMax: 20_000,

  // On SIGTERM: present work may go on for drainMs; the whole shutdown takes at most shutdownMs.
  drainMs: 10_000,
  queueCloseMs: 2_000,
  shutdownMs: 20_000,
} as const;

assert(LIMITS.execsWaitingPerAccountMax < LIMITS.execsWaitingMax);
assert(LIMITS.hostJobsPerAccountMax < LIMITS.hostJobsAtOnceMax);
assert(LIMITS.sandboxJobsPerAccountMax < LIMITS.sandboxJobsAtOnceMax);
// Deliveries to receivers that hang are over before they count no more.
assert(
  (LIMITS.webhooksQueuedPerAccountMax / LIMITS.webhooksAtOncePerAccountMax) *
    (LIMITS.webhookAttemptsMax * LIMITS.webhookAnswerMsMax) <
    LIMITS.webhookQueuedMsMax,
);
assert(LIMITS.idempotentAnswerBytesMax * 2 < LIMITS.idempotentBytesPerAccountMax);
// A node that has not noticed yet that its link is lost, with a clock that is ahead, still signs.
assert(LIMITS.linkSilenceMsMax + LIMITS.partTokenTtlMs < LIMITS.connectionKeySlackMs);
assert(LIMITS.linkHeartbeatMs * 2 < LIMITS.linkSilenceMsMax);
assert(LIMITS.imageBuildRenewMs * 3 < LIMITS.imageBuildTtlMs);
assert(LIMITS.clientWrittenEveryMs * 2 < LIMITS.clientSeenMs);
assert(LIMITS.hostAnnounceMs * 2 < LIMITS.hostTtlMs);
// Work that a host repeats in the directory begins at the same beats.
assert(LIMITS.hostAnnounceMs % LIMITS.hostReportMs === 0);
assert((LIMITS.diskLeaseTtlMs / 5) % LIMITS.hostReportMs === 0);
assert(LIMITS.usageWrittenEveryMs % LIMITS.hostReportMs === 0);
assert(LIMITS.directorySpaceCheckMs * 2 < LIMITS.directoryLowTtlMs);
assert(LIMITS.diskLeaseMarginMs * 2 <= LIMITS.diskLeaseTtlMs);
// The lease that was acquired is still there when the former host has been shut out.
assert(LIMITS.diskProbeMsMax * 2 + LIMITS.storageFenceMsMax < LIMITS.diskLeaseTtlMs);
assert(LIMITS.killGraceMs + LIMITS.diskDetachMsMax <= LIMITS.diskLeaseMarginMs);
assert(LIMITS.storageCallMsMax < LIMITS.hostJobTimeoutMs);
assert(LIMITS.outputBytesPerStreamMax * 2 < LIMITS.linkFrameBytesMax);
assert(
  LIMITS.transferBytesPerSecondMin * LIMITS.transferStalledMs >= LIMITS.downloadBufferBytes * 1000,
);
// A caller who gives up after 30 s still gets the answer, and a claim outlasts the job it is for.
assert(LIMITS.sandboxBeginMs + LIMITS.sandboxWaitMsMax < 30_000);
assert(LIMITS.sandboxBeginMs * 2 < LIMITS.sandboxClaimMs);
assert(LIMITS.drainMs + LIMITS.killGraceMs < LIMITS.shutdownMs);
assert(LIMITS.pageSizeDefault <= LIMITS.pageSizeMax);
assert(LIMITS.grepDurationMsMax < LIMITS.grepSecondsMax * 1000);
assert(LIMITS.grepMatchesBytesMax < LIMITS.linkFrameBytesMax);
