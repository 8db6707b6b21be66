import { GetObjectCommand, PutObjectCommand, S3Client } from '@aws-sdk/client-s3';
import { getSignedUrl } from '@aws-sdk/s3-request-presigner';
import type { DiskUser } from './tools.ts';

/** A URL that the AWS SDK presigns, good for a minute at the given address. */
export async function presign(
  { identifier, token, disk, s3Url }: DiskUser,
  method: 'GET' | 'PUT',
  key: string,
  baseUrl: string = s3Url,
): Promise<string> {
  const client = new S3Client({
    endpoint: baseUrl,
    region: 'us-east-1',
    forcePathStyle: true,
    credentials: { accessKeyId: identifier, secretAccessKey: token },
    requestChecksumCalculation: 'WHEN_REQUIRED', // Otherwise that of an empty body is signed.
  });
  const object = { Bucket: disk, Key: key };
  const command = method === 'GET' ? new GetObjectCommand(object) : new PutObjectCommand(object);
  return getSignedUrl(client, command, { expiresIn: 60 });
}
