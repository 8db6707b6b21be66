import { S3Error } from '../protocol/errors.ts';

/**
 * Objects have no versions, so the only version that one can ask for is `null`, the object itself.
 * @throws S3Error InvalidArgument, NoSuchVersion
 */
export function assertVersion(versionId: string | undefined): void {
  if (versionId === '') throw new S3Error('InvalidArgument', 'The version id must not be empty.');
  if (versionId !== undefined && versionId !== 'null') throw new S3Error('NoSuchVersion');
}
