import { join } from 'node:path';
import { errnoOf } from '../../../../shared/errors.ts';
import { closeFile, openFile, rm } from '../../../disks/disk-calls.ts';
import { toItsEnd } from '../../../disks/disk-threads.ts';
import { S3Error } from '../protocol/errors.ts';
import { newStagedName } from './upload-names.ts';

/** A file being written, invisible to callers; it is removed with its scope unless renamed. */
export interface StagedFile extends AsyncDisposable {
  readonly fd: number;
  readonly path: string;
}

/** @throws S3Error `ServiceUnavailable` when the disk is no longer mounted */
export async function stageFile(uploads: string): Promise<StagedFile> {
  const path = join(uploads, newStagedName());
  const fd = await openFile(path, 'wx+', 0o600).catch((error: unknown) => {
    throw errnoOf(error) === 'ENOENT' ? new S3Error('ServiceUnavailable') : error;
  });
  return {
    fd,
    path,
    [Symbol.asyncDispose]: async () => {
      await closeFile(fd);
      await toItsEnd(() => rm(path, { force: true }));
    },
  };
}
