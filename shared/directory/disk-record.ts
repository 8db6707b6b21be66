import type { ChainableCommander } from 'ioredis';
import { parseJson } from '../json.ts';
import type { DiskStatus, RootAttrs } from '../schemas/disk.ts';
import type { MountStatus, StoredMount } from '../schemas/disk-mount.ts';
import type { AuthorizedUser } from '../schemas/disk-user.ts';
import { type DiskClient, toClients } from './disk-clients.ts';
import { isHeldLease, leaseHolder } from './disk-leases.ts';
import { keys } from './keys.ts';

/** A disk user as stored; the token of a `token` user is sealed. */
export interface DiskUserRecord extends Omit<AuthorizedUser, 'token'> {
  readonly sealedToken?: string;
}

/** The record of a disk. Its manifest repeats all of it, so that it can be rebuilt from there. */
export interface DiskRecord {
  readonly id: string;
  readonly accountId: string;
  readonly organization: string;
  readonly region: string;
  readonly name: string;
  readonly status: DiskStatus;
  readonly createdAt: string;
  readonly rootAttrs?: RootAttrs;
  readonly allowedIps: readonly string[];
  /** Of pages that may read objects and shared files. */
  readonly allowedOrigins: readonly string[];
  readonly users: readonly DiskUserRecord[];
  /** Object storage behind the disk, if there is any. */
  readonly mounts?: readonly StoredMount[];
  /** Grows with every change of the record; the manifest with the highest revision wins. */
  readonly revision: number;
}

/** Measured usage; each figure is absent until it was measured once. */
export interface DiskUsage {
  readonly lastAccessed?: string;
  readonly usedBytes?: number;
  readonly requests?: number;
  readonly requestMsTotal?: number;
}

export interface DiskEntry {
  readonly record: DiskRecord;
  readonly usage: DiskUsage;
  readonly clients: readonly DiskClient[];
  /** The host that has the disk's lease. */
  readonly handler?: string;
  /** Whether a sandbox of that host mounts the disk, so that it cannot move. */
  readonly isHeld?: boolean;
  /** What was last found out about the object storage behind it. */
  readonly mountStatus?: MountStatus;
}

// Not validated: only this code writes the directory. The manifest, which others can edit, is.
const parse = <T>(text: string): T => parseJson(text) as T;

function toRecord(
  accountId: string,
  fields: Record<string, string>,
  users: Record<string, string>,
): DiskRecord | undefined {
  const { id, organization, region, name, status, createdAt, allowedIps, rootAttrs } = fields;
  const { mounts } = fields;
  if (id === undefined || organization === undefined || region === undefined) return undefined;
  if (name === undefined || status === undefined || createdAt === undefined) return undefined;
  return {
    id,
    accountId,
    organization,
    region,
    name,
    status: status as DiskStatus,
    createdAt,
    ...(rootAttrs === undefined ? {} : { rootAttrs: parse<RootAttrs>(rootAttrs) }),
    allowedIps: parse<string[]>(allowedIps ?? '[]'),
    allowedOrigins: parse<string[]>(fields['allowedOrigins'] ?? '[]'),
    users: Object.values(users)
      .map((text) => parse<DiskUserRecord>(text))
      .sort((a, b) => (a.createdAt < b.createdAt ? -1 : 1)),
    ...(mounts === undefined ? {} : { mounts: parse<StoredMount[]>(mounts) }),
    revision: Number(fields['revision'] ?? '1'),
  };
}

function toUsage(fields: Record<string, string>): DiskUsage {
  const { lastAccessed, usedBytes, requests, requestMsTotal } = fields;
  return {
    ...(lastAccessed === undefined ? {} : { lastAccessed }),
    ...(usedBytes === undefined ? {} : { usedBytes: Number(usedBytes) }),
    ...(requests === undefined ? {} : { requests: Number(requests) }),
    ...(requestMsTotal === undefined ? {} : { requestMsTotal: Number(requestMsTotal) }),
  };
}

/** Queues the reads of one disk; {@link toDiskEntries} decodes the replies. */
export function queueDiskRead(
  pipeline: ChainableCommander,
  { region, accountId, diskId }: { region: string; accountId: string; diskId: string },
): void {
  pipeline
    .hgetall(keys.disk(region, accountId, diskId))
    .hgetall(keys.diskUsers(region, accountId, diskId))
    .get(keys.diskLease(region, accountId, diskId));
}

const READS_PER_DISK = 3;

/** The disks behind the replies to {@link queueDiskRead}, in order; undefined for one that does not exist. */
export function toDiskEntries(
  accountId: string,
  replies: [error: Error | null, result: unknown][] | null,
): (DiskEntry | undefined)[] {
  const values = (replies ?? []).map(([error, result]) => {
    if (error !== null) throw error;
    return result;
  });
  const entries: (DiskEntry | undefined)[] = [];
  for (let i = 0; i < values.length; i += READS_PER_DISK) {
    const fields = values[i] as Record<string, string>;
    const users = values[i + 1] as Record<string, string>;
    const record = toRecord(accountId, fields, users);
    const lease = values[i + 2] as string | null;
    const handler = leaseHolder(lease);
    const { mountStatus } = fields;
    entries.push(
      record && {
        record,
        usage: toUsage(fields),
        clients: toClients(fields),
        ...(mountStatus === undefined ? {} : { mountStatus: parse<MountStatus>(mountStatus) }),
        ...(handler === undefined ? {} : { handler, isHeld: isHeldLease(lease) }),
      },
    );
  }
  return entries;
}
