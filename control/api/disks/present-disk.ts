import type {
  DiskEntry,
  DiskUsage,
  DiskUserRecord,
} from '../../../shared/directory/disk-record.ts';
import type { CreatedDisk, Disk } from '../../../shared/schemas/disk.ts';
import type { DiskMount } from '../../../shared/schemas/disk-bucket.ts';
import type { AuthorizedUser } from '../../../shared/schemas/disk-user.ts';

/** The cloud part of a region id `<cloud>-<region>`. */
const providerOf = (region: string): string => region.split('-')[0] ?? region;

export function presentUser(
  { sealedToken: _, ...user }: DiskUserRecord,
  token?: string,
): AuthorizedUser {
  return { ...user, ...(token === undefined ? {} : { token }) };
}

function presentMetrics({ requests, requestMsTotal }: DiskUsage): Disk['metrics'] | undefined {
  if (requests === undefined || requests === 0) return undefined;
  const average = Math.round((requestMsTotal ?? 0) / requests);
  return { requests: String(requests), avgResponseTime: `${average} ms` };
}

/** The object storage behind a disk as the API shows it: everything but its secrets. */
export const presentMounts = ({ record, mountStatus }: DiskEntry): DiskMount[] =>
  (record.mounts ?? []).map(({ id, type, bucketName, endpoint, prefix, writeBack }) => ({
    id,
    type,
    path: '/',
    name: bucketName,
    accessMode: 'rw',
    config: {
      bucketName,
      bucketEndpoint: endpoint ?? '',
      bucketPrefix: prefix,
      sessionId: '',
      writeBack,
    },
    connectionStatus: mountStatus?.connectionStatus ?? 'disconnected',
    ...(mountStatus?.authError === undefined ? {} : { authError: mountStatus.authError }),
    authorizationType: type === 'azure-blob' ? 'oauth' : 'accessKeys',
    ...(mountStatus === undefined ? {} : { checkedAt: mountStatus.checkedAt }),
    problemCount: mountStatus?.problemCount ?? 0,
    problems: [...(mountStatus?.problems ?? [])],
  }));

/** A disk as the API shows it. Figures that were never measured are left out. */
export function presentDisk(entry: DiskEntry): Disk {
  const { record, usage, clients, leaseHolder } = entry;
  const metrics = presentMetrics(usage);
  const { usedBytes } = usage;
  return {
    id: record.id,
    name: record.name,
    organization: record.organization,
    status: record.status,
    provider: providerOf(record.region),
    region: record.region,
    createdAt: record.createdAt,
    fsHandlerStatus: leaseHolder === undefined ? 'idle' : 'attached',
    ...(usage.lastAccessed === undefined ? {} : { lastAccessed: usage.lastAccessed }),
    ...(usedBytes === undefined ? {} : { dataSize: usedBytes, activeDataBytes: usedBytes }),
    mounts: presentMounts(entry),
    ...(metrics === undefined ? {} : { metrics }),
    connectedClients: clients.map(({ id, ipAddress, connectedAt }) => ({
      id,
      ipAddress,
      connectedAt: new Date(connectedAt).toISOString(),
    })),
    authorizedUsers: record.users.map((user) => presentUser(user)),
    allowedIps: [...record.allowedIps],
    allowedOrigins: [...record.allowedOrigins],
    ...(record.rootAttrs === undefined ? {} : { rootAttrs: record.rootAttrs }),
  };
}

/** @param tokens the one-time tokens by user identifier; empty when the disk existed before */
export function presentCreatedDisk(
  entry: DiskEntry,
  tokens: ReadonlyMap<string, string>,
): CreatedDisk {
  return {
    ...presentDisk(entry),
    diskId: entry.record.id,
    authorizedUsers: entry.record.users.map((user) =>
      presentUser(user, tokens.get(user.identifier)),
    ),
  };
}
