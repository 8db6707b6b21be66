import assert from 'node:assert';
import { DIRECTORY_LIMITS } from '../../shared/directory/limits.ts';
import { LIMITS } from '../../shared/limits.ts';
import { DAY_MS, GiB, HOUR_MS, KiB, MINUTE_MS, MiB, TiB } from '../../shared/units.ts';

/** Limits of the servers that this host listens with. */
export const EDGE_LIMITS = {
  // Single-object deletions are summed per user for this long before they enter the activity.
  deletionsSummedMs: 60_000,
  deletionSumsMax: 10_000,
  clientWrittenEveryMs: 30_000,
  clientsRememberedMax: 10_000,

  // Downloads
  rangesMax: 16,
  // Each download has two such buffers, whatever the size of its file.
  downloadBufferBytes: 256 * KiB,
  // Objects up to this size are read by the call that opens them.
  objectReadAtOnceBytesMax: 64 * KiB,
  downloadsPerHostMax: 256,

  // Object API; sizes and times are those of S3
  objectKeyBytesMax: 1024,
  objectNameBytesMax: 255, // NAME_MAX of ext4.
  objectBytesMax: 5 * TiB,
  partBytesMin: 5 * MiB, // All but the last one.
  uploadsPerDiskMax: 10_000,
  uploadAgeMsMax: 7 * DAY_MS,
  // The completion of an upload can be repeated for this long.
  uploadAnswerAgeMsMax: HOUR_MS,
  keysPerDeleteMax: 1000,
  // Unsealed tokens of disk users that an agent keeps; beyond it all are forgotten.
  diskTokensRememberedMax: 1000,
  signatureClockSkewMsMax: 15 * MINUTE_MS,
  presignedSecondsMax: 7 * 24 * 3600,
  objectPutBytesMax: 5 * GiB,
  // Upload forms: bytes and number of fields; then the head, everything before the file, which
  // carries the credentials: its bytes, its deadline, and how many heads a host reads at a time.
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

  // The longest file whose MD5 an append computes by reading it; see docs/object-api.md.
  appendHashedBytesMax: 64 * MiB,
  // A request ends when nothing of its body has arrived for this long and no answer has begun.
  objectIdleMsMax: 2 * HOUR_MS,

  // Process connections
  processConnectionsPerHostMax: 10_000,
  // Connections of one sandbox besides those that may be attached: each may hold a whole message.
  unattachedConnectionsMax: 64,
  firstMessageMs: 10_000,
  // A text frame, or a frame of input, of which clients send at most 1 MiB.
  clientMessageBytesMax: 2 * MiB,
  // Input of a client of version 2 that the process has not taken.
  inputWindowBytes: 2 * MiB,
  // How far ahead of what a client of version 2 has read it may be sent output.
  outputWindowBytes: MiB,
  outputWindowBytesMin: 64 * KiB,
  outputWindowBytesMax: 64 * MiB,
  connectionPingMs: 30_000,
  connectionCheckMs: 1_000,
  // Two pings that were not answered.
  connectionSilenceMsMax: 75_000,
  // How long a client may take nothing of the output that waits for it.
  connectionStallMsMax: 30_000,

  // Requests for files, and watches, of all sandboxes of this host at the same time.
  filesPerHostMax: 256,
  watchesPerHostMax: 256,
  watchKeepAliveMs: 15_000,

  // Ingress
  portTokenLengthMax: 256,
  // Connections that are kept to, or made to, one port; further requests wait for one.
  ingressConnectionsPerPortMax: 1024,
  // How long a connection may take to be made, and a sandbox to come up for a request.
  ingressOpenMsMax: 5_000,
  ingressWakeMsMax: 60_000,
  // How long a request waits for a service that starts with the sandbox that it has woken.
  ingressServiceMsMax: 5_000,
  ingressAskEveryMs: 100,
} as const;

assert(EDGE_LIMITS.clientWrittenEveryMs * 2 < DIRECTORY_LIMITS.clientSeenMs);
assert(
  LIMITS.transferBytesPerSecondMin * LIMITS.transferStalledMs >=
    EDGE_LIMITS.downloadBufferBytes * 1000,
);
