import type { DiskEntry } from '../../shared/directory/disk-record.ts';
import { AppError } from '../../shared/errors.ts';
import type { JobKind, JobPayload } from '../../shared/jobs/jobs.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { Deps } from './deps.ts';
import type { JobReply } from './job-dispatch.ts';
import type { OnPart } from './job-waiters.ts';
import { rankHosts } from './placement.ts';
import { findDisk } from './find-disk.ts';

const MOVES_MAX = 3;

/** The caller's request, as services see it. */
export interface RequestContext {
  readonly requestId: string;
  readonly signal?: AbortSignal;
}

/**
 * Sends a job to the host that handles its disks, or chooses a host when none does. Disks of
 * several hosts are first moved to one of them. When a disk has moved to another host meanwhile,
 * the job has not begun and is sent there.
 * @param find see {@link withDiskHost}
 * @param refusing see {@link rankHosts}
 * @throws NotTaken when the host has not begun it; AppError the host's error, `disk_in_use` when
 *   the disks cannot be moved to one host
 */
export async function callDiskHost<K extends JobKind>(
  deps: Deps,
  disks: readonly DiskEntry[],
  job: { kind: K; payload: JobPayload<K>; deadlineAt?: number; onPart?: OnPart },
  context: RequestContext,
  find: typeof findDisk = findDisk,
  refusing?: ReadonlySet<string>,
): Promise<JobReply<K>> {
  const deadlineAt = job.deadlineAt ?? Date.now() + LIMITS.hostJobTimeoutMs;
  const attempt = (hostId: string): Promise<JobReply<K>> =>
    deps.jobs.call({ ...job, ...context, hostId, deadlineAt });
  return withDiskHost(deps, disks, context, attempt, find, refusing);
}

/**
 * Finds the host that handles the disks, as {@link callDiskHost} does, for work that is not a job.
 * @param attempt does the work on a host; called again with another host after `disk_moved`
 * @param find reads the record of a disk that has moved
 * @param refusing see {@link rankHosts}
 */
export async function withDiskHost<T>(
  deps: Deps,
  disks: readonly DiskEntry[],
  context: RequestContext,
  attempt: (hostId: string) => Promise<T>,
  find: typeof findDisk = findDisk,
  refusing?: ReadonlySet<string>,
): Promise<T> {
  let present = disks;
  for (let moves = 0; ; moves += 1) {
    await linkDiskHosts(deps, present);
    refuseHeldByAbsent(deps, present);
    const ranked = rankHosts(
      deps.hub,
      present.map(({ leaseHolder }) => leaseHolder),
      refusing,
    ).map(({ hostId }) => hostId);
    // Without an await where nothing has to move, so that concurrent requests see each other's
    // load.
    const hostId = togetherAt(present, ranked) ?? (await gather(deps, present, ranked, context));
    try {
      return await attempt(hostId);
    } catch (error) {
      const moved = error instanceof AppError && error.code === 'disk_moved';
      if (!moved || moves === MOVES_MAX) throw error;
      present = await Promise.all(
        present.map(({ record }) => find(deps, record.accountId, record.id)),
      );
    }
  }
}

/** The best host, unless another host has one of the disks. */
function togetherAt(disks: readonly DiskEntry[], [best]: readonly string[]): string | undefined {
  const isTogether = disks.every(
    ({ leaseHolder }) => leaseHolder === undefined || leaseHolder === best,
  );
  return isTogether ? best : undefined;
}

/**
 * Chooses one host for all these disks and has the other hosts release theirs. When a host cannot
 * release a disk because it is in use, that host may be the one that is chosen.
 * @throws AppError `disk_in_use` when disks are in use on several hosts
 */
async function gather(
  deps: Deps,
  disks: readonly DiskEntry[],
  ranked: readonly string[],
  { requestId }: RequestContext,
): Promise<string> {
  let inUse: AppError | undefined;
  for (const hostId of ranked) {
    try {
      await releaseElsewhere(deps, disks, hostId, requestId);
      return hostId;
    } catch (error) {
      if (!(error instanceof AppError) || error.code !== 'disk_in_use') throw error;
      inUse = error;
    }
  }
  throw inUse ?? new Error('no host was ranked');
}

/** Has the hosts of these disks link to this node, where they are not and can be reached. */
export const linkDiskHosts = ({ hosts }: Deps, disks: readonly DiskEntry[]): Promise<void> =>
  hosts.bring(disks.flatMap(({ leaseHolder }) => leaseHolder ?? []));

/**
 * Refuses disks that sandboxes mount on a host which is away: only that host may use them. To be
 * called after {@link linkDiskHosts}.
 * @throws AppError `disk_in_use`
 */
export function refuseHeldByAbsent({ hub }: Deps, disks: readonly DiskEntry[]): void {
  for (const { record, leaseHolder, isHeld } of disks) {
    const host = leaseHolder === undefined ? undefined : hub.find(leaseHolder);
    if (isHeld !== true || host !== undefined) continue;
    const message = `disk ${record.id} is mounted by a sandbox of a host that is away now`;
    throw new AppError('disk_in_use', message);
  }
}

/** Has other hosts release these disks. @throws AppError `disk_in_use`, `unavailable`, `timeout` */
export async function releaseElsewhere(
  { jobs }: Deps,
  disks: readonly DiskEntry[],
  hostId: string,
  requestId: string,
): Promise<void> {
  const deadlineAt = Date.now() + LIMITS.hostJobTimeoutMs;
  await Promise.all(
    disks.map(async ({ record, leaseHolder }) => {
      if (leaseHolder === undefined || leaseHolder === hostId) return;
      const payload = { accountId: record.accountId, diskId: record.id };
      const release = { kind: 'disk.release', payload, hostId: leaseHolder } as const;
      await jobs.call({ ...release, requestId, deadlineAt });
    }),
  );
}
