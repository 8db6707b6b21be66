import { mkdir, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { repeatInBackground, runInBackground } from '../../../shared/background.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { DISK_LIMITS } from '../limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { BucketStatus, StoredBucket } from '../../../shared/schemas/disk-bucket.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { BackingUse } from '../disk-backing.ts';
import { onBehalfOf } from '../disk-threads.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { type Bucket, BucketError } from './bucket.ts';
import { DiskChanges } from './disk-changes.ts';
import { DiskIndex } from './disk-index.ts';
import { DiskReport } from './disk-report.ts';
import { explainFailure } from './explain.ts';
import { FileTurns } from './file-turns.ts';
import { giveUpFiles, roomOn } from './give-up.ts';
import { fillPlaceholder } from './hydration.ts';
import { PlaceholderOpens, type WaitingOpen } from './opens.ts';
import { type BucketPaths, fileStats, bucketPathsOf, stampsOf } from './placeholders.ts';
import { recoverReplaced, refresh } from './refresh.ts';
import { Refusals } from './refusals.ts';
import { upload } from './uploads.ts';

interface BucketDiskOptions {
  readonly accountId: string;
  readonly diskId: string;
  readonly mount: StoredBucket;
  readonly openBucket: (mount: StoredBucket) => Promise<Bucket>;
  readonly layout: { readonly mount: string; readonly contents: string };
  readonly socketPath: string;
  readonly group: string;
  /** How long a command's answer waits for the bucket. */
  readonly settleMs: number;
  /** Whether a sandbox may be writing to the disk. */
  readonly isHeld: () => boolean;
  /** Waits for a turn to fetch an object; what it returns gives the turn back. */
  readonly fetchTurn: (signal: AbortSignal) => Promise<{ release(): void }>;
  /** The same for an upload that opens a placeholder. */
  readonly openTurn: (signal: AbortSignal) => Promise<{ release(): void }>;
  readonly report: (status: BucketStatus) => Promise<void>;
  readonly log: Logger;
}

/** Shares of a disk's size: when files are given up, and how much is free afterwards. */
const ROOM = { leastPart: 0.1, wantedPart: 0.25 };

const notUploaded = (what: string, cause?: BucketError): AppError => {
  const kept = 'It is kept on the disk and uploaded once that is possible';
  return new AppError('outcome_unknown', `the bucket does not take ${what}. ${kept}`, { cause });
};

/**
 * Keeps one attached disk and its bucket the same (decision 0056).
 */
export class BucketDisk {
  readonly #options: BucketDiskOptions;
  readonly #paths: BucketPaths;
  readonly #index: DiskIndex;
  /** Comparisons of disk and bucket, in either direction, one at a time. */
  readonly #turns = new SerialQueue();
  readonly #closed = new AbortController();
  readonly #noFills = new AbortController();
  /** Work on one file at a time: the first opener that is let through may write to it at once. */
  readonly #files = new FileTurns();
  readonly #refusals = new Refusals();
  readonly #report: DiskReport;
  #bucket: Bucket;
  #mount: StoredBucket;
  #opens: PlaceholderOpens | undefined;
  #stopTicking: () => void = () => undefined;
  #waitingUpload: Promise<void> | undefined;
  #waitingRefresh: Promise<void> | undefined;
  #waitingRoom: Promise<void> | undefined;
  #roomWanted = 0;
  readonly #changes: DiskChanges;
  #isListed = false;
  #refreshedAt = -Infinity;
  #refreshTookMs = 0;

  private constructor(options: BucketDiskOptions, bucket: Bucket, index: DiskIndex) {
    this.#options = options;
    this.#paths = bucketPathsOf(options.layout.mount, options.layout.contents);
    this.#bucket = bucket;
    this.#mount = options.mount;
    this.#index = index;
    this.#report = new DiskReport(options.report);
    this.#changes = new DiskChanges({
      ...{ mount: options.layout.mount, isHeld: options.isHeld, log: options.log },
    });
  }

  /** Watches the mounted disk. Nobody may use it before. @throws Error when that fails */
  static async open(options: BucketDiskOptions): Promise<BucketDisk> {
    const { layout, mount, openBucket } = options;
    const paths = bucketPathsOf(layout.mount, layout.contents);
    await mkdir(paths.replaced, { recursive: true, mode: 0o700 });
    await rm(paths.staging, { recursive: true, force: true });
    await mkdir(paths.staging, { mode: 0o700 });
    const index = await DiskIndex.open(paths.index, options.log);
    const disk = new BucketDisk(options, await openBucket(mount), index);
    const { socketPath, group, log } = options;
    try {
      disk.#opens = await PlaceholderOpens.watch({
        ...{ mount: layout.mount, socketPath, group, log },
        onOpen: (open) => disk.#fill(open),
      });
    } catch (error) {
      disk.#changes.close();
      await index.close();
      throw error;
    }
    disk.#isListed = await stat(disk.#listedMark).then(
      () => true,
      () => false,
    );
    await disk.#onThreads(() => disk.#recoverReplaced());
    disk.#stopTicking = repeatInBackground('bucket.compare', DISK_LIMITS.bucketTickMs, () =>
      disk.#tick(),
    );
    return disk;
  }

  get bytes(): number {
    return this.#index.bytes;
  }

  /** @throws AppError `unavailable` when the bucket was never listed and cannot be now */
  async ready(): Promise<void> {
    if (this.#isListed) {
      if (this.#refreshedAt === -Infinity) {
        const refreshed = this.#refreshSoon().catch(() => undefined);
        await settledWithin(refreshed, DISK_LIMITS.bucketAttachMsMax);
      }
      return;
    }
    await this.#refreshSoon().catch((error: unknown) => {
      throw new AppError('unavailable', `the bucket of the disk: ${toError(error).message}`);
    });
  }

  begin(): BackingUse {
    const sinceMs = performance.now();
    const use: BackingUse = {
      closed: () => {
        this.#changes.closed(use);
      },
      settle: () => this.#settle(sinceMs),
      end: () => {
        if (this.#changes.closed(use)) this.#changes.expect();
      },
    };
    this.#changes.opened(use);
    return use;
  }

  async #settle(sinceMs: number): Promise<void> {
    const isSame = !this.#changes.any && this.#refusals.size === 0;
    if (isSame || this.#mount.writeBack === 'lazy') return;
    const until = performance.now() + this.#options.settleMs;
    for (;;) {
      try {
        await this.#uploadSoon();
        break;
      } catch (error) {
        const failure = explainFailure(error);
        if (performance.now() > until || this.#closed.signal.aborted) {
          throw notUploaded(`what was written: ${failure.message}`, failure);
        }
        await sleep(DISK_LIMITS.bucketPauseMsMin);
      }
    }
    const refused = this.#refusals.tellSince(sinceMs);
    if (refused !== undefined) throw notUploaded(refused);
  }

  /** Uses the bucket with the present credentials from now on, and tries it. */
  async renew(mount: StoredBucket): Promise<void> {
    const former = this.#bucket;
    this.#bucket = await this.#options.openBucket(mount);
    this.#mount = mount;
    former.close();
    this.#refusals.retryAll();
    this.#refreshedAt = -Infinity;
    this.#changes.expect();
  }

  async detach(withinMs: number): Promise<boolean> {
    let isSettled = false;
    if (withinMs > 0 && this.#isListed) {
      const settled = this.#uploadSoon().then(
        () => (isSettled = this.#refusals.size === 0),
        () => undefined,
      );
      await settledWithin(settled, withinMs);
    }
    this.#stopTicking();
    const reason = new AppError('unavailable', 'the disk is detached');
    this.#closed.abort(reason);
    // Without a sandbox that holds the disk, only uploads still open files that must be filled.
    if (!this.#options.isHeld()) this.#noFills.abort(reason);
    await this.#turns.idle;
    await this.#index.close().catch((error: unknown) => {
      // Lines that are lost cost uploads, no data; the disk may be full.
      const { log, diskId } = this.#options;
      log.warn({ diskId, err: toError(error) }, 'bucket:indexNotWritten');
    });
    return isSettled;
  }

  async trySettle(): Promise<boolean> {
    if (!this.#isListed) return true;
    return this.#uploadSoon().then(
      () => this.#refusals.size === 0,
      () => false,
    );
  }

  async unmounted(): Promise<void> {
    this.#changes.close();
    await this.#opens?.close();
    this.#bucket.close();
  }

  get #listedMark(): string {
    return join(this.#paths.mount, 'bucket/listed');
  }

  async #fill(open: WaitingOpen): Promise<void> {
    const { inode } = stampsOf(await fileStats(open.fd));
    await this.#files.take(inode, () => this.#fillInTurn(open));
  }

  async #fillInTurn(open: WaitingOpen): Promise<void> {
    const signal = AbortSignal.any([open.signal, this.#noFills.signal]);
    const turn = await this.#options.fetchTurn(signal);
    try {
      await fillPlaceholder(
        {
          ...{ paths: this.#paths, index: this.#index, bucket: () => this.#bucket },
          makeRoom: (bytes) => this.#makeRoom(bytes),
        },
        { fd: open.fd, openToWrite: () => open.openToWrite(), signal },
      );
    } catch (error) {
      const failure = explainFailure(error);
      runInBackground('bucket.report', () => this.#tell(failure));
      throw failure;
    } finally {
      turn.release();
    }
  }

  async #tick(): Promise<void> {
    if (this.#closed.signal.aborted || !this.#isListed) return;
    const isUsed = this.#changes.isUsed;
    if (this.#changes.any || this.#refusals.isDue) await this.#uploadSoon().catch(() => undefined);
    if (isUsed) await this.#makeRoom(0);
    const ageMs = performance.now() - this.#refreshedAt;
    const dueMs = Math.max(DISK_LIMITS.bucketRefreshMs, 10 * this.#refreshTookMs);
    if (ageMs > dueMs && !this.#closed.signal.aborted) {
      await this.#uploadSoon().catch(() => undefined);
      await this.#refreshSoon().catch(() => undefined);
    }
  }

  /**
   * Does work with threads of a share that the account has beside that of its requests, which may
   * all wait for objects. No signal of a request counts: requests share this work.
   */
  #onThreads<T>(work: () => Promise<T>): Promise<T> {
    return onBehalfOf(`bucket:${this.#options.accountId}`, undefined, work);
  }

  #compare<T>(work: () => Promise<T>): Promise<T> {
    return this.#turns.add(() => this.#onThreads(work));
  }

  /** Shared by all who ask before it begins. */
  #uploadSoon(): Promise<void> {
    this.#waitingUpload ??= this.#compare(async () => {
      this.#waitingUpload = undefined;
      this.#closed.signal.throwIfAborted();
      try {
        await this.#changes.compare(() => this.#upload());
      } catch (error) {
        throw await this.#failed(error);
      }
      if (this.#report.hasNews) await this.#tell();
    });
    return this.#waitingUpload;
  }

  /** @returns whether anything was not the same */
  async #upload(): Promise<boolean> {
    await this.#recoverReplaced();
    const { problems, hasChanges } = await upload(
      {
        ...{ paths: this.#paths, index: this.#index, bucket: this.#bucket },
        refusals: this.#refusals,
        openTurn: this.#options.openTurn,
        noteConflict: (key, reason) => this.#noteConflict(key, reason),
      },
      this.#closed.signal,
    );
    this.#report.ofNames = problems;
    this.#report.ofRefusals = this.#refusals.problems;
    return hasChanges;
  }

  #refreshSoon(): Promise<void> {
    this.#waitingRefresh ??= this.#compare(async () => {
      this.#waitingRefresh = undefined;
      this.#closed.signal.throwIfAborted();
      const begunAt = performance.now();
      const parts = {
        ...{ paths: this.#paths, index: this.#index, bucket: this.#bucket },
        ifFree: (inode: bigint, work: () => Promise<void>) => this.#files.takeIfFree(inode, work),
      };
      try {
        this.#report.ofKeys = await refresh(parts, this.#closed.signal);
      } catch (error) {
        const failure = await this.#failed(error);
        // A bucket that has too much, for example, has it the next time as well.
        if (failure.failure === 'disk') this.#noteRefresh(begunAt);
        throw failure;
      }
      this.#noteRefresh(begunAt);
      if (!this.#isListed) await writeFile(this.#listedMark, '', { flush: true });
      this.#isListed = true;
      await this.#tell();
    });
    return this.#waitingRefresh;
  }

  #noteRefresh(begunAt: number): void {
    this.#refreshedAt = performance.now();
    this.#refreshTookMs = this.#refreshedAt - begunAt;
  }

  /**
   * Sees to it that this much can be written, and something more, if files can be given up for it.
   * @throws BucketError when not even this much can
   */
  async #makeRoom(bytes: number): Promise<void> {
    const { freeBytes, totalBytes } = await roomOn(this.#paths.mount);
    if (freeBytes >= bytes + totalBytes * ROOM.leastPart) return;
    this.#roomWanted = Math.max(this.#roomWanted, bytes + totalBytes * ROOM.wantedPart);
    // An upload may be waiting for the file that this is for: it goes on without room, then.
    await settledWithin(this.#giveUpSoon(), DISK_LIMITS.bucketRoomMsMax);
    if ((await roomOn(this.#paths.mount)).freeBytes >= bytes) return;
    const reason = 'everything else on it is in use, or not in the bucket yet';
    throw new BucketError('disk', `the disk is full: ${reason}`);
  }

  /** Shared by all who ask before it begins. Never fails. */
  #giveUpSoon(): Promise<void> {
    this.#waitingRoom ??= this.#compare(async () => {
      this.#waitingRoom = undefined;
      const wanted = this.#roomWanted;
      this.#roomWanted = 0;
      const { signal } = this.#closed;
      const fanotifyGroup = this.#opens?.group;
      if (signal.aborted || fanotifyGroup === undefined) return;
      const parts = {
        ...{ paths: this.#paths, index: this.#index, bucket: this.#bucket, fanotifyGroup },
        inTurn: <T>(inode: bigint, work: () => Promise<T>) => this.#files.take(inode, work),
      };
      await giveUpFiles(parts, wanted, signal).catch((error: unknown) => this.#failed(error));
    });
    return this.#waitingRoom;
  }

  async #recoverReplaced(): Promise<void> {
    const names = await readdir(this.#paths.replaced);
    const found = await recoverReplaced(this.#paths, names);
    for (const name of found) {
      this.#noteConflict(name, 'written here while the object was changed in the bucket');
    }
  }

  #noteConflict(key: string, reason: string): void {
    this.#report.noteConflict(key, reason);
    this.#options.log.warn({ diskId: this.#options.diskId }, 'bucket:conflict');
  }

  async #failed(error: unknown): Promise<BucketError> {
    const failure = explainFailure(error);
    const { log, diskId } = this.#options;
    log.warn({ diskId, err: failure, cause: failure.cause }, 'bucket:compareFailed');
    if (!this.#closed.signal.aborted) await this.#tell(failure);
    return failure;
  }

  /** Tells the directory how the bucket is, which one request that failed does not show. */
  async #tell(failure?: BucketError): Promise<void> {
    this.#report.ofRefusals = this.#refusals.problems;
    const isOwn = failure === undefined || failure.failure === 'disk';
    await this.#report.tell(isOwn ? failure : await this.#checked());
  }

  /** @returns why the bucket cannot be used with the present credentials */
  async #checked(): Promise<BucketError | undefined> {
    for (;;) {
      const bucket = this.#bucket;
      const failure = await bucket.check(AbortSignal.timeout(DISK_LIMITS.bucketCheckMsMax)).then(
        () => undefined,
        (error: unknown) => explainFailure(error),
      );
      if (bucket === this.#bucket) return failure;
    }
  }
}
