import { repeatInBackground } from '../../../shared/background.ts';
import type { Directory } from '../../../shared/directory/directory.ts';
import { DISK_LIMITS } from '../limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { BucketStatus, StoredBucket } from '../../../shared/schemas/disk-bucket.ts';
import { type BucketSettings, openBucket } from './open-bucket.ts';
import { explainFailure } from './explain.ts';

interface Ref {
  readonly accountId: string;
  readonly diskId: string;
}

interface BucketChecksDeps {
  readonly settings: BucketSettings;
  readonly directory: Directory;
  readonly log: Logger;
}

interface Report {
  readonly serial: number;
  /** The report's text without the time of its check. */
  readonly text: string;
}

const textOf = ({ checkedAt: _, ...told }: BucketStatus): string => JSON.stringify(told);

/** Finds out whether buckets can be used, and asks again as long as one cannot. */
export class BucketChecks {
  readonly #deps: BucketChecksDeps;
  /** Disks whose bucket could not be used when it was last tried here, by id. */
  readonly #failing = new Map<string, Ref>();
  /** The last report of each disk, by id. */
  readonly #reports = new Map<string, Report>();
  #serial = 0;
  readonly #stop: () => void;

  constructor(deps: BucketChecksDeps) {
    this.#deps = deps;
    this.#stop = repeatInBackground('bucket.recheck', DISK_LIMITS.bucketRecheckMs, async () => {
      for (const ref of [...this.#failing.values()]) await this.check(ref);
    });
  }

  /**
   * Tries the bucket of a disk, if it has one, and records what came of it. Never fails for that.
   */
  async check(ref: Ref): Promise<void> {
    const { accountId, diskId } = ref;
    const entry = await this.#deps.directory.disks.get(accountId, diskId);
    const mount = entry?.record.status === 'deleting' ? undefined : entry?.record.mounts?.[0];
    if (mount === undefined) {
      this.#failing.delete(diskId);
      return;
    }
    const begunAt = this.#serial;
    const authError = await this.#attempt(diskId, mount);
    // A report that was written meanwhile, by a use of the bucket or another check, is newer.
    if ((this.#reports.get(diskId)?.serial ?? 0) > begunAt) return;
    await this.#write(ref, {
      connectionStatus: authError === undefined ? 'connected' : 'error',
      ...(authError === undefined ? {} : { authError }),
      checkedAt: new Date().toISOString(),
      problemCount: entry?.mountStatus?.problemCount ?? 0,
      problems: entry?.mountStatus?.problems ?? [],
    });
  }

  /** Forgets what was reported of a disk: another agent may have reported since. */
  forget(diskId: string): void {
    this.#reports.delete(diskId);
  }

  /** Records what the use of a bucket showed, unless the last report says the same. */
  async record(ref: Ref, status: BucketStatus): Promise<void> {
    const text = textOf(status);
    if (this.#reports.get(ref.diskId)?.text === text) this.#remember(ref.diskId, text);
    else await this.#write(ref, status);
  }

  async #write({ accountId, diskId }: Ref, status: BucketStatus): Promise<void> {
    if (status.connectionStatus === 'connected') this.#failing.delete(diskId);
    else if (this.#failing.size < DISK_LIMITS.bucketRechecksMax) {
      this.#failing.set(diskId, { accountId, diskId });
    }
    this.#remember(diskId, textOf(status));
    try {
      await this.#deps.directory.disks.recordBucketStatus({ accountId, id: diskId }, status);
    } catch (error) {
      this.forget(diskId); // Nobody knows what is recorded now.
      throw error;
    }
  }

  #remember(diskId: string, text: string): void {
    this.#serial += 1;
    this.#reports.delete(diskId);
    this.#reports.set(diskId, { serial: this.#serial, text });
    const [oldest] = this.#reports.keys();
    if (this.#reports.size > DISK_LIMITS.bucketReportsMax && oldest !== undefined) {
      this.#reports.delete(oldest);
    }
  }

  async close(): Promise<void> {
    this.#stop();
  }

  /** @returns why the bucket cannot be used; undefined when it can */
  async #attempt(diskId: string, mount: StoredBucket): Promise<string | undefined> {
    try {
      const bucket = await openBucket(this.#deps.settings, diskId, mount);
      try {
        await bucket.check(AbortSignal.timeout(DISK_LIMITS.bucketCheckMsMax));
      } finally {
        bucket.close();
      }
      return undefined;
    } catch (error) {
      const failure = explainFailure(error);
      this.#deps.log.warn({ diskId, err: failure }, 'bucket:checkFailed');
      return failure.message;
    }
  }
}
