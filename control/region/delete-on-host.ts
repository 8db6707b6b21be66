import { AppError, type ErrorCode } from '../../shared/errors.ts';
import type { JobResults } from '../../shared/jobs/jobs.ts';
import { RefusedRequest } from './refused-request.ts';

const MAY_BE_DONE: ReadonlySet<ErrorCode> = new Set(['unavailable', 'outcome_unknown', 'timeout']);

/** The deletion of a sandbox or a snapshot, which is refused while forks stand on its disk. */
interface Deletion {
  /** Kind and id, for messages. */
  readonly name: string;
  readonly refusal: ErrorCode;
  readonly remove: () => Promise<JobResults['sandbox.delete' | 'snapshot.delete']>;
  /** Reads the directory; undefined once it is gone. */
  readonly find: () => Promise<unknown>;
}

/** @throws AppError the host's error, and the refusal */
export async function deleteOnHost({ name, refusal, remove, find }: Deletion): Promise<void> {
  try {
    const { dependentForks } = await remove();
    if (dependentForks === undefined) return;
    const { count, diskIds } = dependentForks;
    throw new RefusedRequest(
      refusal,
      // Clients look for the words `dependent forks`.
      `${name} has dependent forks: ${count}; first delete the sandboxes and ` +
        `snapshots of the disks ${diskIds.join(', ')}`,
      { fields: { child_disk_count: count, child_disk_ids: diskIds } },
    );
  } catch (error) {
    if (!(error instanceof AppError) || !MAY_BE_DONE.has(error.code)) throw error;
    // The caller would repeat the call and get 404, so a deletion that happened must succeed.
    if ((await find()) !== undefined) throw error;
  }
}
