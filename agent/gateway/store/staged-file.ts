import { open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../../../shared/errors.ts';
import { S3Error } from '../errors.ts';
import { newStagedName } from './upload-names.ts';

/** A file that is being written and that nobody sees; it is gone with its scope unless renamed. */
export interface StagedFile extends AsyncDisposable {
  readonly fd: number;
  readonly path: string;
}

/** @throws S3Error `ServiceUnavailable` when the disk is not mounted any more */
export async function stageFile(uploads: string): Promise<StagedFile> {
  const path = join(uploads, newStagedName());
  const file = await open(path, 'wx+', 0o600).catch((error: unknown) => {
    throw errnoOf(error) === 'ENOENT' ? new S3Error('ServiceUnavailable') : error;
  });
  return {
    fd: file.fd,
    path,
    [Symbol.asyncDispose]: async () => {
      await file.close();
      await rm(path, { force: true });
    },
  };
}
