import type { RedisClient } from './redis-client.ts';
import { parseJson } from '../json.ts';
import type { DiskStatus, RootAttrs } from '../schemas/disk.ts';
import type { BucketStatus, StoredBucket } from '../schemas/disk-bucket.ts';
import type { AuthorizedUser } from '../schemas/disk-user.ts';
import { type DiskClient, toClients } from './disk-clients.ts';
import { isHeldLease, leaseHolder } from './disk-leases.ts';
import { keys } from './keys.ts';

/** A disk user as stored; the token of a `token` user is sealed. */
export interface DiskUserRecord extends Omit<AuthorizedUser, 'token'> {
  readonly sealedToken?: string;
}

/** Whether the user's credentials work still. */
export const isInForce = ({ expiresAt }: DiskUserRecord): boolean =>
  expiresAt === undefined || Date.parse(expiresAt) > Date.now();

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
  /** Origins of pages that may read objects and shared files. */
  readonly allowedOrigins: readonly string[];
  readonly users: readonly DiskUserRecord[];
  /** Object storage behind the disk, if there is any. */
  readonly mounts?: readonly StoredBucket[];
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
  readonly leaseHolder?: string;
  /** Whether a sandbox of that host mounts the disk, so that it cannot move. */
  readonly isHeld?: boolean;
  /** The last check of the object storage behind it. */
  readonly mountStatus?: BucketStatus;
}

const orderOf = (user: DiskUserRecord): string =>
  `${user.createdAt} ${user.type} ${user.identifier}`;

/** Oldest first; those of one moment in an order that is the same wherever the record is kept. */
export const sortUsers = (users: readonly DiskUserRecord[]): DiskUserRecord[] =>
  users.toSorted((a, b) => (orderOf(a) < orderOf(b) ? -1 : 1));

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
    users: sortUsers(Object.values(users).map((text) => parse<DiskUserRecord>(text))),
    ...(mounts === undefined ? {} : { mounts: parse<StoredBucket[]>(mounts) }),
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

/** Reads a disk. The commands of reads at the same time travel to Redis together. */
export async function readDisk(
  redis: RedisClient,
  { region, accountId, diskId }: { region: string; accountId: string; diskId: string },
): Promise<DiskEntry | undefined> {
  const [fields, users, lease] = await Promise.all([
    redis.hgetall(keys.disk(region, accountId, diskId)),
    redis.hgetall(keys.diskUsers(region, accountId, diskId)),
    redis.get(keys.diskLease(region, accountId, diskId)),
  ]);
  const record = toRecord(accountId, fields, users);
  if (record === undefined) return undefined;
  const holder = leaseHolder(lease);
  const { mountStatus } = fields;
  return {
    record,
    usage: toUsage(fields),
    clients: toClients(fields),
    ...(mountStatus === undefined ? {} : { mountStatus: parse<BucketStatus>(mountStatus) }),
    ...(holder === undefined ? {} : { leaseHolder: holder, isHeld: isHeldLease(lease) }),
  };
}
