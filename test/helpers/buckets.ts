import type { CreatedDisk, Disk } from '../../shared/schemas/disk.ts';
import type { DiskMount } from '../../shared/schemas/disk-bucket.ts';
import type { ApiClient } from './api.ts';
import type { Environment } from './daemon.ts';
import { createDisk } from './disks.ts';
import { freePorts } from './ports.ts';
import type { DiskUser } from './tools.ts';

/** Settings that let disks of a stack stand on buckets of this machine, at any port. */
export const LOOPBACK_BUCKETS = { BUCKET_REACHABLE_NETWORKS: '127.0.0.1/32' };

/** Settings that let disks of a stack stand on its other disks, and reach no other port. */
export async function ownBuckets(): Promise<Environment> {
  const [port = 0] = await freePorts(1);
  return {
    AGENT_PORT: String(port),
    AGENT_PUBLIC_URL: `http://127.0.0.1:${port}`,
    BUCKET_REACHABLE_NETWORKS: `127.0.0.1/32:${port}`,
  };
}

/** A mount of the bucket that another disk is, by its own object API. */
export const mountOf = (user: DiskUser, change: Record<string, unknown> = {}): object => ({
  type: 's3-compatible',
  bucketName: user.disk,
  bucketEndpoint: user.s3Url,
  accessKeyId: user.identifier,
  secretAccessKey: user.token,
  ...change,
});

/** Creates a disk whose contents are those of another one. */
export const createBucketDisk = (
  api: ApiClient,
  user: DiskUser,
  change: Record<string, unknown> = {},
): Promise<CreatedDisk> => createDisk(api, { mounts: [mountOf(user, change)] });

/** The mount of a disk as the API shows it now. */
export async function readMount(api: ApiClient, diskId: string): Promise<DiskMount> {
  const [mount] = (await api.data<Disk>('GET', `/api/disks/${diskId}`)).mounts;
  if (mount === undefined) throw new Error(`disk ${diskId} has no mount`);
  return mount;
}
