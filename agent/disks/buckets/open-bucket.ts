import { parseJson } from '../../../shared/json.ts';
import {
  type BucketCredentials,
  bucketSealContext,
  type StoredBucket,
} from '../../../shared/schemas/disk-bucket.ts';
import { type Ring, unseal } from '../../../shared/secrets.ts';
import type { AzureSettings } from './azure-bucket.ts';
import type { Bucket } from './bucket.ts';

export interface BucketSettings extends AzureSettings {
  readonly encryptionKeys: Ring<Buffer>;
}

/**
 * Opens the object storage of a mount. The SDK is loaded by the first call: most hosts need none.
 * @throws BucketError when it cannot be used from here
 */
export async function openBucket(
  settings: BucketSettings,
  diskId: string,
  mount: StoredBucket,
): Promise<Bucket> {
  const sealed = mount.sealedCredentials;
  const text = unseal(settings.encryptionKeys, sealed, bucketSealContext(diskId, mount.id));
  const credentials = parseJson(text) as BucketCredentials;
  if (mount.type === 'azure-blob') {
    const { AzureBucket } = await import('./azure-bucket.ts');
    return new AzureBucket(mount, credentials, settings);
  }
  const { S3Bucket } = await import('./s3-bucket.ts');
  return new S3Bucket(mount, credentials, settings.networks);
}
