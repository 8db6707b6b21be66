import type { StoredBucket } from '../../shared/schemas/disk-bucket.ts';

export interface DiskRef {
  readonly accountId: string;
  readonly diskId: string;
}

/** A use of a disk that stands on object storage. */
export interface BackingUse {
  /** Nothing that this use has opened on the disk is open any more. */
  closed(): void;
  /**
   * Waits until what was written to the disk is in the storage, if its owner asked for that.
   * @throws AppError `outcome_unknown`; also for files that the storage has refused since the use
   *   began
   */
  settle(): Promise<void>;
  /** Ends the use; its changes are uploaded soon. Idempotent. */
  end(): void;
}

/** The object storage behind one attached disk. */
export interface AttachedBacking {
  /** Bytes of all objects together. */
  readonly bytes: number;
  /** Waits until the disk shows what is in the storage. @throws AppError `unavailable` */
  ready(): Promise<void>;
  /** Every use of the disk's contents begins here, but those of sandboxes. */
  begin(): BackingUse;
  /** @returns false when something written is not in the storage, which cannot be used now */
  trySettle(): Promise<boolean>;
  /** Nobody uses the disk any more. @param withinMs how long to go on uploading */
  detach(withinMs: number): Promise<void>;
  /** The disk is unmounted. */
  unmounted(): Promise<void>;
}

/** Object storage behind disks. */
export interface DiskBacking {
  /**
   * Finds out whether the storage behind a disk can be used, and records it. Never fails for that.
   */
  check(disk: DiskRef): Promise<void>;
  /**
   * Begins to keep a mounted disk and its storage the same. Nobody may use the disk before.
   * @param isHeld whether a sandbox may be writing to the disk
   */
  attach(
    disk: DiskRef,
    mount: StoredBucket,
    layout: { readonly mount: string; readonly contents: string },
    isHeld: () => boolean,
  ): Promise<AttachedBacking>;
  /** Call it once no disk is attached any more. */
  close(): Promise<void>;
}
