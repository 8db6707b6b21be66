import { AppError } from '../../../shared/errors.ts';
import { isOrigin } from '../../../shared/http/cross-origin.ts';
import type { Deps } from '../../region/deps.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import { recordDisk } from './record-disk.ts';

/** @throws AppError `bad_request` naming the first entry that is no origin */
export function checkAllowedOrigins(list: readonly string[]): string[] {
  const wrong = list.find((text) => !isOrigin(text));
  if (wrong === undefined) return [...new Set(list)];
  throw new AppError(
    'bad_request',
    `allowedOrigins: ${wrong} is not an origin as browsers send it, such as https://app.example.com`,
  );
}

/** Replaces the origins whose pages may read objects and shared files of the disk. */
export async function setAllowedOrigins(
  deps: Deps,
  disk: { accountId: string; diskId: string },
  list: readonly string[],
  context: RequestContext,
): Promise<string[]> {
  const allowedOrigins = checkAllowedOrigins(list);
  const { accountId, diskId } = disk;
  const { disks } = deps.directory;
  if (!(await disks.setAllowedOrigins({ accountId, id: diskId }, allowedOrigins))) {
    throw new AppError('not_found', `disk ${diskId} not found`);
  }
  await recordDisk(deps, disk, context);
  return allowedOrigins;
}
