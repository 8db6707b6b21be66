import Type from 'typebox';
import { SCHEMA_LIMITS } from '../schemas/limits.ts';
import { ANSWER_GRACE_MS, DiskRef, type JobKindRow } from './job-kind.ts';

const onDisk = { queue: 'host', isRepeatable: true, graceMs: ANSWER_GRACE_MS } as const;

/** Work on a disk besides its commands. */
export const diskKinds = {
  /** Makes the file system of a disk that the directory lists as `creating`. Idempotent. */
  'disk.create': { ...onDisk, payload: DiskRef },
  /** Ends what runs on the disk and deletes its data. Idempotent. */
  'disk.delete': { ...onDisk, payload: DiskRef },
  /** Writes the directory's present record of the disk into the manifest. Idempotent. */
  'disk.record': { ...onDisk, payload: DiskRef },
  /**
   * Finds out whether the object storage behind the disk can be used, and records it. Idempotent.
   */
  'disk.checkMount': { ...onDisk, payload: DiskRef },
  /** Unmounts the disk if nothing uses it, so that another host can take it. Idempotent. */
  'disk.release': { ...onDisk, payload: DiskRef },
  /** Finds out whether a file can be downloaded. Idempotent. */
  'disk.stat': {
    ...onDisk,
    payload: Type.Interface([DiskRef], {
      key: Type.String({ minLength: 1, maxLength: SCHEMA_LIMITS.shareKeyBytesMax }),
    }),
  },
  /** Lists who holds or awaits what on the disk. */
  'disk.delegations': { ...onDisk, payload: DiskRef },
  /** Ends the holder's exec. Idempotent. */
  'disk.revoke': {
    ...onDisk,
    payload: Type.Interface([DiskRef], {
      clientId: Type.String({ maxLength: 255 }),
      inodeId: Type.Integer({ minimum: 0 }),
    }),
  },
} as const satisfies Record<string, JobKindRow>;

/** A delegation: one exec's exclusive use of a file or directory (docs/api.md, delegations). */
export interface Delegation {
  readonly clientId: string;
  readonly inodeId: number;
  /** From the disk's root. */
  readonly path: string;
  readonly isPending: boolean;
  readonly isOrphaned: boolean;
}

export interface DiskResults {
  'disk.create': Record<string, never>;
  'disk.delete': Record<string, never>;
  'disk.record': Record<string, never>;
  'disk.checkMount': Record<string, never>;
  'disk.release': Record<string, never>;
  'disk.stat': { readonly sizeBytes: number };
  'disk.delegations': { readonly delegations: readonly Delegation[] };
  'disk.revoke': { readonly revoked: boolean };
}
