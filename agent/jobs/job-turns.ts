import { AppError } from '../../shared/errors.ts';
import { type JobKind, jobKind } from '../../shared/jobs/jobs.ts';
import { LIMITS } from '../../shared/limits.ts';
import { FairSlots, type Slot } from '../queues/fair-slots.ts';

/** What decides for which places a job waits, and how long. */
interface WaitingJob {
  readonly kind: JobKind;
  readonly payload: { readonly accountId: string };
  readonly deadlineAt: number;
}

/** Shares the places for jobs between accounts; commands on disks have places of their own. */
export class JobTurns {
  readonly #host = new FairSlots({
    count: LIMITS.hostJobsAtOnceMax,
    perAccountMax: LIMITS.hostJobsPerAccountMax,
    waiting: {
      count: LIMITS.hostJobsWaitingMax,
      perAccountMax: LIMITS.hostJobsWaitingPerAccountMax,
    },
    refusal: 'the host has more work waiting than it can soon do; try again',
  });
  /** Most of them only wait for what they began, so there are many, and nobody waits for one. */
  readonly #sandboxes = new FairSlots({
    count: LIMITS.sandboxJobsAtOnceMax,
    perAccountMax: LIMITS.sandboxJobsPerAccountMax,
    waiting: { count: 0, perAccountMax: 0 },
    refusal: 'the host has too many calls of this account at work; try again',
  });

  /**
   * @returns a place, or undefined for a job that needs none
   * @throws AppError `no_capacity`; `timeout` when the job's deadline passed before its turn
   */
  async take(job: WaitingJob): Promise<Slot | undefined> {
    // Nobody repeats a discard that was refused.
    const { queue } = jobKind(job.kind);
    if (queue === 'exec' || job.kind === 'sandbox.discard') return undefined;
    const slots = queue === 'sandbox' ? this.#sandboxes : this.#host;
    const late = new AbortController();
    const timer = setTimeout(() => {
      late.abort(new AppError('timeout', 'the work waited for its turn past its deadline'));
    }, job.deadlineAt - Date.now());
    try {
      return await slots.acquire(job.payload.accountId, late.signal);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Refuses jobs that wait for their turn. */
  close(): void {
    const reason = new AppError('unavailable', 'the host is shutting down; try again');
    this.#host.close(reason);
  }
}
