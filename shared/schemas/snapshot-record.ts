import Type from 'typebox';
import { accountIdPattern, diskIdPattern, hostIdPattern, sandboxIdPattern } from '../ids.ts';
import { SCHEMA_LIMITS } from './limits.ts';
import { ShownNetworkPolicy } from './network-policy.ts';
import { SandboxConfig } from './sandbox-record.ts';

/** States of a snapshot as callers see them. A failed one holds nothing but its record. */
export const snapshotStatuses = ['creating', 'ready', 'failed'] as const;
export type SnapshotStatus = (typeof snapshotStatuses)[number];

/** A snapshot as its host publishes it; times are RFC 3339. */
export const SnapshotRecord = Type.Object({
  id: Type.String({ pattern: sandboxIdPattern }),
  accountId: Type.String({ pattern: accountIdPattern }),
  /** Sandboxes are created from it on this host only. */
  hostId: Type.String({ pattern: hostIdPattern }),
  name: Type.String(),
  /** The sandbox that it was made of. */
  sandboxId: Type.String({ pattern: sandboxIdPattern }),
  /** The sandbox's configuration when it was made, its name included. */
  config: SandboxConfig,
  status: Type.Enum([...snapshotStatuses]),
  hasMemory: Type.Boolean(),
  /** The bytes of its files on the host, shared ones included. */
  sizeBytes: Type.Integer({ minimum: 0 }),
  /** The id of its disk; no disk that the API of disks knows. */
  rootDiskId: Type.String({ pattern: diskIdPattern }),
  platform: Type.Enum(['amd64', 'arm64']),
  network: ShownNetworkPolicy,
  createdAt: Type.String(),
  /** In words, for people. */
  failureReason: Type.Optional(
    Type.String({ maxLength: SCHEMA_LIMITS.sandboxExitMessageLengthMax }),
  ),
  /** Grows with every change; the newest one counts. */
  revision: Type.Integer({ minimum: 1 }),
});
export type SnapshotRecord = Type.Static<typeof SnapshotRecord>;
