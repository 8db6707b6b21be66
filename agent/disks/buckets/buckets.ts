import { mkdir, readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { runInBackground } from '../../../shared/background.ts';
import type { Directory } from '../../../shared/directory/directory.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { DISK_LIMITS } from '../limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { StoredBucket } from '../../../shared/schemas/disk-bucket.ts';
import type { AttachedBacking, DiskBacking, DiskRef } from '../disk-backing.ts';
import type { DiskRegistry } from '../disk-registry.ts';
import { FairTurns } from '../../system/queues/fair-turns.ts';
import { paths } from '../../system/paths.ts';
import { writeDurably } from '../../system/write-durably.ts';
import { BucketDisk } from './bucket-disk.ts';
import { BucketChecks } from './bucket-checks.ts';
import { type BucketSettings, openBucket } from './open-bucket.ts';

interface BucketsDeps {
  readonly settings: BucketSettings;
  readonly dataDir: string;
  /** cgroup.procs of the group for helpers that outlive agents. */
  readonly group: string;
  /** How long a command's answer waits for the bucket. */
  readonly settleMs: number;
  readonly directory: Directory;
  readonly log: Logger;
}

const MARK = '.attached';

/** The object storage behind this host's disks. */
export class Buckets implements DiskBacking {
  readonly #deps: BucketsDeps;
  readonly #checks: BucketChecks;
  readonly #attached = new Map<string, BucketDisk>();
  readonly #closed = new AbortController();
  /** Objects that are fetched at the same time, so that some threads stay free for the agent. */
  readonly #fetches = new FairTurns({
    count: DISK_LIMITS.bucketFetchesMax,
    perAccountMax: DISK_LIMITS.bucketFetchesPerAccountMax,
    refusal: 'too many objects are being fetched',
  });
  /** Placeholders that uploads open at the same time: each occupies a thread until it is filled. */
  readonly #opens = new FairTurns({
    count: DISK_LIMITS.bucketOpensMax,
    perAccountMax: DISK_LIMITS.bucketOpensPerAccountMax,
    refusal: 'too many files are being fetched to be uploaded',
  });

  constructor(deps: BucketsDeps) {
    this.#deps = deps;
    this.#checks = new BucketChecks(deps);
  }

  async check(disk: DiskRef): Promise<void> {
    await this.#checks.check(disk);
    const attached = this.#attached.get(disk.diskId);
    if (attached === undefined) return;
    const entry = await this.#deps.directory.disks.get(disk.accountId, disk.diskId);
    const mount = entry?.record.mounts?.[0];
    if (mount !== undefined) await attached.renew(mount);
  }

  async attach(
    disk: DiskRef,
    mount: StoredBucket,
    layout: { readonly mount: string; readonly contents: string },
    isHeld: () => boolean,
  ): Promise<AttachedBacking> {
    const { dataDir, group, settings, settleMs, log } = this.#deps;
    const { accountId, diskId } = disk;
    const folder = paths.buckets(dataDir);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    // The next agent goes on with what this one could not upload.
    await writeDurably(folder, `${diskId}${MARK}`, accountId);
    this.#checks.forget(diskId);
    const attached = await BucketDisk.open({
      ...{ accountId, diskId, mount, layout, group, settleMs, isHeld, log },
      openBucket: (of) => openBucket(settings, diskId, of),
      socketPath: join(folder, `${diskId}.sock`),
      fetchTurn: (signal) => this.#fetches.acquire(accountId, signal, DISK_LIMITS.bucketTurnMsMax),
      openTurn: (signal) => this.#opens.acquire(accountId, signal, DISK_LIMITS.bucketTurnMsMax),
      report: (status) => this.#checks.record(disk, status),
    });
    this.#attached.set(diskId, attached);
    return {
      get bytes() {
        return attached.bytes;
      },
      ready: () => attached.ready(),
      begin: () => attached.begin(),
      trySettle: () => attached.trySettle(),
      detach: async (withinMs) => {
        const isSettled = await attached.detach(withinMs);
        if (isSettled) await this.#forget(diskId);
      },
      unmounted: async () => {
        if (this.#attached.get(diskId) === attached) this.#attached.delete(diskId);
        await attached.unmounted();
      },
    };
  }

  /** Uploads what former agents of this host could not. */
  async resume(disks: DiskRegistry): Promise<void> {
    const names = await readdir(paths.buckets(this.#deps.dataDir)).catch(() => []);
    for (const name of names.filter((each) => each.endsWith(MARK))) {
      const file = join(paths.buckets(this.#deps.dataDir), name);
      const accountId = await readFile(file, 'utf8');
      const disk = { accountId, diskId: name.slice(0, -MARK.length) };
      runInBackground('bucket.resume', () => this.#resumeOne(disks, disk));
    }
  }

  async close(): Promise<void> {
    this.#closed.abort();
    await this.#checks.close();
  }

  async #resumeOne(disks: DiskRegistry, disk: DiskRef): Promise<void> {
    while (!this.#closed.signal.aborted) {
      try {
        const claim = await disks.get(disk).claim('bucket-resume', () => undefined);
        claim.release();
        return; // The disk stays attached until all is uploaded.
      } catch (error) {
        if (error instanceof AppError && error.code === 'not_found') {
          return await this.#forget(disk.diskId);
        }
        this.#deps.log.warn({ diskId: disk.diskId, err: toError(error) }, 'bucket:resumeFailed');
        const { signal } = this.#closed;
        await sleep(DISK_LIMITS.bucketRecheckMs, undefined, { signal }).catch(() => undefined);
      }
    }
  }

  async #forget(diskId: string): Promise<void> {
    await rm(join(paths.buckets(this.#deps.dataDir), `${diskId}${MARK}`), { force: true });
  }
}
