import { AppError } from '../../shared/errors.ts';
import type { ExecMount } from '../../shared/jobs.ts';
import type { DiskMountInput, RunMultiExec } from '../../shared/schemas/exec.ts';
import { checkRelative } from './relative-path.ts';

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
  const { subdirectory = '', readOnly = false, queueMs, checkoutPaths } = input;
  if (subdirectory !== '') checkRelative(subdirectory, 'subdirectory');
  for (const checkout of checkoutPaths ?? []) checkRelative(checkout, 'checkout path');
  if (readOnly && (queueMs !== undefined || checkoutPaths !== undefined)) {
    throw new AppError('bad_request', `disk at ${path}: a read-only mount can check nothing out`);
  }
  // Waiting without saying for what means the mount itself (WIRE §5.2).
  const checkouts = checkoutPaths ?? (queueMs === undefined ? [] : ['']);
  const checkoutWaitMs = queueMs ?? 0;
  return { diskId: input.disk, path, subdirectory, readOnly, checkouts, checkoutWaitMs };
}

/**
 * The mounts that a multi-disk exec asks for (SPEC "Multi-disk exec", WIRE §5.2). Pure.
 * @throws AppError `bad_request` for a path that is not allowed or lies within another
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
  return Object.entries(disks).map(([path, disk]) =>
    toMount(path, typeof disk === 'string' ? { disk } : disk),
  );
}
