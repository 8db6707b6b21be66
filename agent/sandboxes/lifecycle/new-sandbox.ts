import { randomUUID } from 'node:crypto';
import { newDiskId } from '../../../shared/ids.ts';
import type { NetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import type { SandboxConfig } from '../../../shared/schemas/sandbox-record.ts';
import type { SandboxBase, SandboxRow } from '../../system/journal/sandbox-journal.ts';
import type { PrewarmedMachine } from '../prewarming/prewarmed-machines.ts';

/** A sandbox to be created. */
export interface NewSandbox {
  readonly sandboxId: string;
  readonly accountId: string;
  readonly config: SandboxConfig;
  readonly environment: Readonly<Record<string, string>>;
  /** Undefined: nothing is restricted beyond what the host closes to all. */
  readonly network?: NetworkPolicy | undefined;
  /** Undefined: the default image. With a digest, the account must have the right to the image. */
  readonly image?: Pick<SandboxBase, 'reference' | 'digest'> | undefined;
}

/** A fork to be created; it takes the rest of its configuration from its source. */
export interface NewFork {
  readonly sandboxId: string;
  readonly name: string;
  /** The checkpoint that the source must show; undefined: any. */
  readonly checkpoint: string | undefined;
  /** In place of its source's; empty: none. */
  readonly copyHook?: string | undefined;
  /** False for a caller whose key may not mount the disks of the source. */
  readonly mayMount?: boolean | undefined;
}

/** A sandbox to be created from a snapshot, which has the rest of its configuration. */
export interface NewFromSnapshot {
  readonly sandboxId: string;
  readonly accountId: string;
  readonly snapshotId: string;
  /** In place of the snapshot's. */
  readonly config: Partial<SandboxConfig> & Pick<SandboxConfig, 'name'>;
  /** Undefined: the snapshot's. */
  readonly environment: Readonly<Record<string, string>> | undefined;
  /** Undefined: the snapshot's. */
  readonly network: NetworkPolicy | undefined;
}

/** Fields that a new sandbox has from the start. */
export type Origin = Pick<
  SandboxRow,
  'id' | 'accountId' | 'config' | 'environment' | 'image' | 'network' | 'networkSealed'
> &
  Partial<Pick<SandboxRow, 'parentId' | 'snapshotId' | 'nameAddresses'>>;

/** The machine of a new sandbox and its user on the host. */
export type Owner = Pick<PrewarmedMachine, 'vmId' | 'uid'>;

/** The row of a sandbox that is about to be created. */
export function newRow(origin: Origin, owner: Owner): SandboxRow {
  const now = new Date().toISOString();
  return {
    parentId: undefined,
    snapshotId: undefined,
    ...origin,
    rootDiskId: newDiskId(),
    ...owner,
    slot: undefined,
    bootId: randomUUID(),
    state: 'pending_start',
    checkpoint: undefined,
    runningSince: undefined,
    expiresAt: undefined,
    idleSince: undefined,
    revision: 1,
    createdAt: now,
    lastActiveAt: now,
    runningAt: undefined,
    finishedAt: undefined,
    exitReason: undefined,
    exitMessage: undefined,
    hook: undefined,
    isDeleting: false,
  };
}
