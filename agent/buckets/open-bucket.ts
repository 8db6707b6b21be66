import { parseJson } from '../../shared/json.ts';
import type { ReachableNetworks } from '../../shared/reachable-networks.ts';
import {
  type MountCredentials,
  mountSealContext,
  type StoredMount,
} from '../../shared/schemas/disk-mount.ts';
import { unseal } from '../../shared/secrets.ts';
import { type Bucket, BucketError } from './bucket.ts';

export interface BucketSettings {
  readonly encryptionKey: Buffer;
  readonly networks: ReachableNetworks;
}

/**
 * Opens the object storage of a mount. The SDK is loaded by the first call: most hosts need none.
 * @throws BucketError when it cannot be used from here
 */
export async function openBucket(
  { encryptionKey, networks }: BucketSettings,
  diskId: string,
  mount: StoredMount,
): Promise<Bucket> {
  if (mount.type === 'azure-blob') throw new BucketError('other', 'azure-blob is not built yet');
  const sealed = mount.sealedCredentials;
  const text = unseal(encryptionKey, sealed, mountSealContext(diskId, mount.id));
  const { S3Bucket } = await import('./s3-bucket.ts');
  return new S3Bucket(mount, parseJson(text) as MountCredentials, networks);
}
