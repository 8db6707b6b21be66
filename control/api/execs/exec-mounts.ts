import { AppError } from '../../../shared/errors.ts';
import type { ExecMount } from '../../../shared/jobs/command-kinds.ts';
import { API_LIMITS } from '../limits.ts';
import type { DiskMountInput, RunMultiExec } from '../../../shared/schemas/exec.ts';
import { checkRelative } from '../../http/relative-path.ts';

/** The whole disk at the mount root: what a single-disk exec sees. */
export const wholeDisk = (diskId: string): ExecMount => ({
  diskId,
  path: '',
  subdirectory: '',
  readOnly: false,
  checkouts: [],
  checkoutWaitMs: 0,
});

function toMount(path: string, input: DiskMountInput): ExecMount {
  const { subdirectory = '', readOnly = false, conditional = false, queueMs } = input;
  const { checkoutPaths } = input;
  if (subdirectory !== '') checkRelative(subdirectory, 'subdirectory');
  for (const checkout of checkoutPaths ?? []) checkRelative(checkout, 'checkout path');
  if (readOnly && (queueMs !== undefined || checkoutPaths !== undefined)) {
    throw new AppError('bad_request', `disk at ${path}: a read-only mount can check nothing out`);
  }
  // `queueMs` alone checks out the mount itself, but not for a `conditional` writer, who shares the
  // mount with others.
  const implied = queueMs === undefined || conditional ? [] : [''];
  const checkouts = checkoutPaths ?? implied;
  const checkoutWaitMs = queueMs ?? 0;
  return { diskId: input.disk, path, subdirectory, readOnly, checkouts, checkoutWaitMs };
}

/**
 * The mounts that a multi-disk exec asks for (docs/api.md, `POST /api/exec`). Pure.
 * @throws AppError `bad_request` for a path that is not allowed or lies within another, and for too
 *   many checkouts
 */
export function execMounts(disks: RunMultiExec['disks']): ExecMount[] {
  const paths = Object.keys(disks);
  for (const path of paths) {
    checkRelative(path, 'mount path');
    const outer = paths.find((other) => path.startsWith(`${other}/`));
    if (outer !== undefined) {
      throw new AppError('bad_request', `mount path ${path} lies within ${outer}`);
    }
  }
  const mounts = Object.entries(disks).map(([path, disk]) =>
    toMount(path, typeof disk === 'string' ? { disk } : disk),
  );
  if (mounts.flatMap(({ checkouts }) => checkouts).length > API_LIMITS.checkoutsPerExecMax) {
    const most = API_LIMITS.checkoutsPerExecMax;
    throw new AppError('bad_request', `a command can check out at most ${most} paths in all`);
  }
  return mounts;
}
