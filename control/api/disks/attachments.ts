import type { DiskEntry } from '../../../shared/directory/disk-record.ts';
import { AppError } from '../../../shared/errors.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import {
  CLOSED_TREES,
  type SandboxMount,
  type SandboxMountInput,
  SYSTEM_DIRECTORIES,
} from '../../../shared/schemas/sandbox-mount.ts';
import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import type { SandboxState } from '../../../shared/sandbox-lifecycle.ts';
import type { Deps } from '../../region/deps.ts';
import { checkRelative } from '../../http/relative-path.ts';

/** Where the sole mount of a sandbox goes that names no path, as in a command on one disk. */
const DEFAULT_PATH = '/mnt/service';

const isWithin = (path: string, tree: string): boolean =>
  path === tree || path.startsWith(`${tree}/`);

/** @throws AppError `bad_request` */
function checkPath(path: string, what: string): void {
  const bad = (reason: string): AppError =>
    new AppError('bad_request', `${what}: path ${JSON.stringify(path)} ${reason}`);
  if (!path.startsWith('/')) throw bad('is not absolute');
  if (path === '/') throw bad('is the root of the sandbox; mount below it, for example at /mnt');
  if (Buffer.byteLength(path) > SCHEMA_LIMITS.mountPathBytesMax) throw bad('is too long');
  checkRelative(path.slice(1), `${what}: path below /,`);
  const closed = CLOSED_TREES.find((tree) => isWithin(path, tree));
  if (closed !== undefined) throw bad(`lies in ${closed}, where nothing can be mounted`);
  const covered = [...SYSTEM_DIRECTORIES, ...CLOSED_TREES].find((system) => isWithin(system, path));
  if (covered !== undefined) throw bad(`would cover the system directory ${covered}`);
}

function toMount(input: SandboxMountInput, what: string, isSole: boolean): SandboxMount {
  const { disk_id: diskId, path, subdirectory = '', read_only: readOnly = false } = input;
  const asked = (['queue_ms', 'checkout_paths'] as const).find((name) => input[name] !== undefined);
  if (asked !== undefined) {
    throw new AppError(
      'bad_request',
      `${what}: ${asked} is not built: sandboxes check nothing out`,
    );
  }
  if (path === undefined && !isSole) {
    throw new AppError('bad_request', `${what}: path is required with more than one mount`);
  }
  const target = path ?? DEFAULT_PATH;
  checkPath(target, what);
  if (subdirectory !== '') checkRelative(subdirectory, `${what}: subdirectory`);
  return { diskId, path: target, subdirectory, readOnly };
}

/**
 * The mounts that a caller asks for. Pure.
 * @throws AppError `bad_request` naming the first position that is not allowed
 */
export function sandboxMounts(inputs: readonly SandboxMountInput[]): SandboxMount[] {
  const mounts: SandboxMount[] = [];
  for (const [position, input] of inputs.entries()) {
    const what = `mounts[${position}]`;
    const mount = toMount(input, what, inputs.length === 1);
    const overlaps = mounts.find(
      ({ path }) => isWithin(mount.path, path) || isWithin(path, mount.path),
    );
    if (overlaps !== undefined) {
      throw new AppError('bad_request', `${what}: ${mount.path} overlaps ${overlaps.path}`);
    }
    if (mounts.some(({ diskId }) => diskId === mount.diskId)) {
      const message = `${what}: disk ${mount.diskId} is mounted twice; mount each disk once`;
      throw new AppError('bad_request', message);
    }
    mounts.push(mount);
  }
  return mounts;
}

/**
 * The disks of these mounts.
 * @throws AppError `not_found` naming position and disk, alike for a missing disk and another
 *   account's
 */
export async function findMountedDisks(
  deps: Deps,
  accountId: string,
  mounts: readonly SandboxMount[],
): Promise<DiskEntry[]> {
  const { disks } = deps.directory;
  const entries = await Promise.all(mounts.map(({ diskId }) => disks.get(accountId, diskId)));
  return entries.map((entry, position) => {
    if (entry?.record.status === 'available') return entry;
    const diskId = mounts[position]?.diskId ?? '';
    throw new AppError('not_found', `mounts[${position}]: disk ${diskId} not found`);
  });
}

/** States in which nothing of a sandbox is left that could use a disk. */
const ENDED: ReadonlySet<SandboxState> = new Set(['stopped', 'exited', 'failed']);

/** A live sandbox of the account that mounts the disk, if there is one. */
export async function liveSandboxWith(
  deps: Deps,
  { accountId, diskId }: { accountId: string; diskId: string },
): Promise<SandboxRecord | undefined> {
  const records = await deps.directory.sandboxes.list(accountId);
  return records.find(
    ({ state, config }) =>
      !ENDED.has(state) && config.mounts?.some((mount) => mount.diskId === diskId) === true,
  );
}
