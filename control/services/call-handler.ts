import type { DiskEntry } from '../../shared/directory/disks.ts';
import { AppError } from '../../shared/errors.ts';
import type { JobKind, JobPayload } from '../../shared/jobs.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { Deps } from '../deps.ts';
import type { JobReply } from '../job-dispatch.ts';
import { chooseHost } from '../placement.ts';

const MOVES_MAX = 3;

/** What belongs to one request of a caller. */
export interface RequestContext {
  readonly requestId: string;
  readonly signal?: AbortSignal;
}

/**
 * Sends a job to the disk's handler, or makes a host its handler. A disk that changed hands in
 * between is followed: such a job never began.
 */
export async function callHandler<K extends JobKind>(
  deps: Deps,
  disk: DiskEntry,
  job: { kind: K; payload: JobPayload<K>; deadlineAt?: number },
  context: RequestContext,
): Promise<JobReply<K>> {
  const deadlineAt = job.deadlineAt ?? Date.now() + LIMITS.hostJobTimeoutMs;
  let { handler } = disk;
  for (let moves = 0; ; moves += 1) {
    const hostId = chooseHost(deps.hub.hosts, handler);
    try {
      return await deps.jobs.call({ ...job, ...context, hostId, deadlineAt });
    } catch (error) {
      const moved = error instanceof AppError && error.code === 'disk_moved';
      if (!moved || moves === MOVES_MAX) throw error;
      handler = (await deps.directory.disks.get(disk.record.accountId, disk.record.id))?.handler;
    }
  }
}
