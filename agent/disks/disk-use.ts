import { runInBackground } from '../../shared/background.ts';
import type { Directory } from '../../shared/directory/directory.ts';
import { isRedisRefusal } from '../../shared/directory/redis.ts';
import { toError } from '../../shared/errors.ts';
import { DISK_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import { SerialQueue } from '../system/queues/serial-queue.ts';

interface Disk {
  readonly accountId: string;
  readonly diskId: string;
}

/** @returns bytes in use on the disk, or undefined when it is not mounted any more */
export type MeasureDisk = () => Promise<number | undefined>;

/** Uses of one disk that the directory does not have yet. */
interface Unwritten {
  readonly disk: Disk;
  requests: number;
  requestMs: number;
  lastUsedAt: string;
  usedBytes: number | undefined;
  measure: MeasureDisk;
}

/**
 * Counts the uses of this host's disks for `lastAccessed`, `dataSize` and `metrics`: commands,
 * searches, object requests, downloads, whatever became of them. Uses are added up in memory and
 * written to the directory for all disks together, at most once in
 * `DISK_LIMITS.diskUseWrittenEveryMs`, so that none costs a round trip to Redis. A crash loses the
 * uses since the last write.
 */
export class DiskUses {
  readonly #directory: Directory;
  readonly #log: Logger;
  #unwritten = new Map<string, Unwritten>();
  #timer: NodeJS.Timeout | undefined;
  readonly #writes = new SerialQueue();
  #writtenAt = -Infinity;
  #isClosed = false;

  constructor(directory: Directory, log: Logger) {
    this.#directory = directory;
    this.#log = log;
  }

  /**
   * Counts one use that has ended.
   * @param measure called before the next write
   */
  record(disk: Disk, durationMs: number, measure: MeasureDisk): void {
    this.#add({
      disk,
      requests: 1,
      requestMs: durationMs,
      lastUsedAt: new Date().toISOString(),
      usedBytes: undefined,
      measure,
    });
  }

  /**
   * Measures a disk that is given up, if it has uses that are not written; for a moment at most.
   */
  async measureBeforeUnmount(diskId: string): Promise<void> {
    const unwritten = this.#unwritten.get(diskId);
    if (unwritten === undefined) return;
    await settledWithin(this.#measure(unwritten), DISK_LIMITS.diskMeasureMsMax);
  }

  /** Writes what is left, for at most `DISK_LIMITS.diskUseWrittenEveryMs`. */
  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    const written = this.#writes.add(() => this.#write());
    await settledWithin(written, DISK_LIMITS.diskUseWrittenEveryMs);
  }

  #add(use: Unwritten): void {
    const known = this.#unwritten.get(use.disk.diskId);
    if (known === undefined) {
      this.#unwritten.set(use.disk.diskId, use);
    } else {
      known.requests += use.requests;
      known.requestMs += use.requestMs;
      // A use whose write failed comes back with the size that was measured for it. Keep that size:
      // the disk may not be mounted any more when the next write measures it.
      if (use.lastUsedAt >= known.lastUsedAt) {
        known.lastUsedAt = use.lastUsedAt;
        known.measure = use.measure;
        known.usedBytes = use.usedBytes ?? known.usedBytes;
      } else {
        known.usedBytes ??= use.usedBytes;
      }
    }
    this.#writeSoon();
  }

  #writeSoon(): void {
    if (this.#timer !== undefined || this.#isClosed) return;
    const dueInMs = this.#writtenAt + DISK_LIMITS.diskUseWrittenEveryMs - performance.now();
    this.#timer = setTimeout(
      () => {
        runInBackground('disk.writeUses', () => this.#writes.add(() => this.#write()));
      },
      Math.max(0, dueInMs),
    );
  }

  /** The timer stays set until the write has ended, so that writes do not overlap. */
  async #write(): Promise<void> {
    const uses = [...this.#unwritten.values()];
    this.#unwritten = new Map();
    const outcomes = await Promise.all(uses.map((use) => this.#writeOne(use)));
    const failures = outcomes.filter((outcome) => outcome !== undefined);
    if (failures.length > 0) {
      this.#log.warn({ disks: failures.length, err: failures[0] }, 'disk:writeUsesFailed');
    }
    this.#timer = undefined;
    this.#writtenAt = performance.now();
    if (this.#unwritten.size > 0) this.#writeSoon();
  }

  async #writeOne(use: Unwritten): Promise<Error | undefined> {
    const { disk, requests, requestMs, lastUsedAt } = use;
    try {
      await this.#measure(use);
      const { usedBytes } = use;
      await this.#directory.disks.recordUses(
        { accountId: disk.accountId, id: disk.diskId },
        { at: lastUsedAt, usedBytes, requests, requestMs },
      );
      return undefined;
    } catch (error) {
      // After any other failure they may have been counted: they are not counted twice.
      if (isRedisRefusal(error)) this.#add(use);
      return toError(error);
    }
  }

  async #measure(use: Unwritten): Promise<void> {
    try {
      use.usedBytes = (await use.measure()) ?? use.usedBytes;
    } catch (error) {
      this.#log.warn({ diskId: use.disk.diskId, err: toError(error) }, 'disk:measureFailed');
    }
  }
}
