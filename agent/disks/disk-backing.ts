export interface DiskRef {
  readonly accountId: string;
  readonly diskId: string;
}

/** Object storage behind disks. */
export interface DiskBacking {
  /** Finds out whether the storage behind a disk can be used, and records it. Never fails for that. */
  check(disk: DiskRef): Promise<void>;
  /** Call it once no disk is attached any more. */
  close(): Promise<void>;
}
