import type { StoredMount } from '../../shared/schemas/disk-mount.ts';

export interface DiskRef {
  readonly accountId: string;
  readonly diskId: string;
}

/** The object storage behind one attached disk. */
export interface AttachedBacking {
  /** Of all objects together. */
  readonly bytes: number;
  /** Waits until the disk shows what is in the storage. @throws AppError `unavailable` */
  ready(): Promise<void>;
  /**
   * Waits until what was written to the disk is in the storage, if its owner asked for that.
   * @param sinceMs when the use began that was to write, by `performance.now()`: it hears of the files
   * that the storage has refused since then
   * @throws AppError `outcome_unknown`
   */
  settle(sinceMs: number): Promise<void>;
  /** Somebody may have written to the disk: that is uploaded soon. */
  changed(): void;
  /** @returns false when something written is not in the storage, which cannot be used now */
  trySettle(): Promise<boolean>;
  /** Nobody uses the disk any more. @param withinMs how long to go on uploading */
  detach(withinMs: number): Promise<void>;
  /** The disk is unmounted. */
  unmounted(): Promise<void>;
}

/** Object storage behind disks. */
export interface DiskBacking {
  /** Finds out whether the storage behind a disk can be used, and records it. Never fails for that. */
  check(disk: DiskRef): Promise<void>;
  /**
   * Begins to keep a mounted disk and its storage the same. Nobody may use the disk before.
   * @param isUsed whether somebody may be writing to the disk
   */
  attach(
    disk: DiskRef,
    mount: StoredMount,
    layout: { readonly mount: string; readonly contents: string },
    isUsed: () => boolean,
  ): Promise<AttachedBacking>;
  /** Call it once no disk is attached any more. */
  close(): Promise<void>;
}
