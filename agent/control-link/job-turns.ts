import { AppError } from '../../shared/errors.ts';
import { type JobKind, jobKind } from '../../shared/jobs/jobs.ts';
import { LINK_LIMITS } from './limits.ts';
import { timerMs } from '../../shared/units.ts';
import { FairTurns, type Turn } from '../system/queues/fair-turns.ts';

/** The parts of a job that decide which turns it waits for, and how long. */
interface WaitingJob {
  readonly kind: JobKind;
  readonly payload: { readonly accountId: string };
  readonly deadlineAt: number;
}

/** A discard is never repeated, so it must not be refused. */
export const isDiscard = (kind: JobKind): boolean =>
  kind === 'sandbox.discard' || kind === 'snapshot.discard';

/**
 * Hands out turns for jobs between accounts. Jobs that run commands on disks take turns elsewhere.
 */
export class JobTurns {
  readonly #host = new FairTurns({
    count: LINK_LIMITS.hostJobsAtOnceMax,
    perAccountMax: LINK_LIMITS.hostJobsPerAccountMax,
    waiting: {
      count: LINK_LIMITS.hostJobsWaitingMax,
      perAccountMax: LINK_LIMITS.hostJobsWaitingPerAccountMax,
    },
    refusal: 'too many jobs are waiting on the host; try again',
  });
  /** Sandbox jobs mostly wait for a transition, so many may run; beyond that they are refused. */
  readonly #sandboxes = new FairTurns({
    count: LINK_LIMITS.sandboxJobsAtOnceMax,
    perAccountMax: LINK_LIMITS.sandboxJobsPerAccountMax,
    waiting: { count: 0, perAccountMax: 0 },
    refusal: 'too many sandbox calls of this account are running on the host; try again',
  });

  /**
   * Waits for a job's turn.
   * @returns the turn, or undefined for a job that needs none
   * @throws AppError `no_capacity`; `timeout` when the job's deadline passes before its turn comes
   */
  async take(job: WaitingJob): Promise<Turn | undefined> {
    const { queue } = jobKind(job.kind);
    if (queue === 'exec' || isDiscard(job.kind)) return undefined;
    const turns = queue === 'sandbox' ? this.#sandboxes : this.#host;
    const late = new AbortController();
    const timer = setTimeout(
      () => {
        late.abort(
          new AppError(
            'timeout',
            'the deadline passed while the job waited for its turn; it was not begun',
          ),
        );
      },
      timerMs(job.deadlineAt - Date.now()),
    );
    try {
      return await turns.acquire(job.payload.accountId, late.signal);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Refuses the jobs that wait for a turn. */
  close(): void {
    const reason = new AppError('unavailable', 'the host is shutting down; try again');
    this.#host.close(reason);
  }
}
