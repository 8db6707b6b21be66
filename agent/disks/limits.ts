import assert from 'node:assert';
import { LIMITS } from '../../shared/limits.ts';
import { SYSTEM_LIMITS } from '../system/limits.ts';
import { MiB } from '../../shared/units.ts';

/** Limits of disks, and the object storage behind them. */
export const DISK_LIMITS = {
  // With fewer threads in libuv's pool, a few accounts could hold all those that disks may use.
  poolThreadsMin: 16,
  // How many of the threads for file systems one account's calls may hold at a time.
  diskThreadsPerAccountMax: 4,
  // How long a call waits for such a thread before its caller is told to slow down.
  diskThreadWaitMsMax: 10_000,
  // A directory is read for this long at a time; then other accounts have their turn.
  listingSliceMs: 20,

  diskSweepMs: 10_000, // How often hosts finish deletions that have failed.
  diskUseWrittenEveryMs: 1_000,
  diskMeasureMsMax: 500,

  // Disk lease: the holder stops using the disk this margin before the lease expires and another
  // host can acquire it. Within the margin it ends the disk's users (killGraceMs) and unmounts it.
  diskLeaseTtlMs: 20_000,
  diskLeaseMarginMs: 10_000,
  diskIdleUnmountMs: 60_000,
  // Disks attached to a host at a time. The others of its 1024 loop devices (disk-loop.c) are
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
  // Creating, deleting and describing a disk. Only so many at a time, so that storage that hangs
  // does not take all threads of the process.
  storageCallMsMax: 18_000,
  storageCallsAtOnceMax: 2,
  loopSweepMsMax: 60_000,
} as const;

// Leases are renewed at a beat of the host.
assert((DISK_LIMITS.diskLeaseTtlMs / 5) % SYSTEM_LIMITS.hostReportMs === 0);
assert(DISK_LIMITS.diskLeaseMarginMs * 2 <= DISK_LIMITS.diskLeaseTtlMs);
// The lease that was acquired is still there when the former host has been shut out.
assert(
  DISK_LIMITS.diskProbeMsMax * 2 + SYSTEM_LIMITS.storageFenceMsMax < DISK_LIMITS.diskLeaseTtlMs,
);
assert(LIMITS.killGraceMs + DISK_LIMITS.diskDetachMsMax <= DISK_LIMITS.diskLeaseMarginMs);
assert(DISK_LIMITS.storageCallMsMax < LIMITS.hostJobTimeoutMs);
