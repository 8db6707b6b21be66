import { Job, type Worker } from 'bullmq';
import { repeatInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';

const CHECK_EVERY_MS = 2_000;

/**
 * Finds jobs that Redis handed out on a connection that broke before they arrived: the queue lists
 * them as active, but no worker has them, and their callers would wait in vain.
 */
export class LostJobs {
  readonly #worker: Worker;
  readonly #onLost: (job: Job) => void;
  readonly #log: Logger;
  readonly #stop: () => void;
  readonly #known = Promise.withResolvers<void>();
  /**
   * Jobs that a former agent of this host took, as the queue lists them before this one takes any.
   */
  #former: ReadonlySet<string> | undefined;
  readonly #running = new Set<string>();
  /** Jobs that ended here, until Redis no longer lists them as active. */
  readonly #done = new Set<string>();
  /** Jobs that were active in Redis but not running here at the last check. */
  #absent: ReadonlySet<string> = new Set();
  /** Lost jobs that must not begin any more: they were reported, or are a former agent's. */
  readonly #settled = new Set<string>();

  /** @param onLost called once for a job that was lost before it began; it will never begin */
  constructor(worker: Worker, onLost: (job: Job) => void, log: Logger) {
    this.#worker = worker;
    this.#onLost = onLost;
    this.#log = log;
    this.#stop = repeatInBackground('job.findLost', CHECK_EVERY_MS, () => this.#check());
  }

  /**
   * Resolves when the jobs of a former agent are known. Take no job before: clocks may have been
   * set, so times could not tell the former agent's jobs from this one's.
   */
  get known(): Promise<void> {
    return this.#known.promise;
  }

  /**
   * Records a job's arrival.
   * @returns false for one that must not begin: it was reported as lost, or is running, and came
   *   once more from a primary that had not heard that it was taken
   */
  begin(id: string): boolean {
    if (this.#settled.has(id) || this.#running.has(id)) return false;
    this.#running.add(id);
    return true;
  }

  end(id: string): void {
    this.#running.delete(id);
    this.#done.add(id);
  }

  close(): void {
    this.#stop();
  }

  async #check(): Promise<void> {
    try {
      const doneBefore = [...this.#done];
      const [active = []]: string[][] = await this.#worker.backend.getRanges(['active']);
      this.#former ??= new Set(active);
      this.#known.resolve();
      const absent = active.filter((id) => !this.#running.has(id) && !this.#done.has(id));
      for (const id of doneBefore) if (!active.includes(id)) this.#done.delete(id);
      // Lost means absent at two checks in a row: a job may be arriving, or leaving the queue.
      const lost = absent.filter((id) => this.#absent.has(id));
      this.#absent = new Set(absent);
      for (const id of this.#settled) if (!active.includes(id)) this.#settled.delete(id);
      for (const id of lost) if (!this.#settled.has(id)) await this.#report(id);
    } catch (error) {
      this.#log.warn({ err: toError(error) }, 'job:lostCheckFailed');
    }
  }

  /**
   * Reports a lost job. A job that cannot be read now is reported at a later check, and delays no
   * other report.
   */
  async #report(id: string): Promise<void> {
    try {
      const job = await Job.fromId(this.#worker, id);
      if (job === undefined || this.#running.has(id) || this.#done.has(id)) return;
      this.#settled.add(id);
      // A job that a former agent of this host took may have begun.
      if (this.#former?.has(id) !== true) this.#onLost(job);
    } catch (error) {
      this.#log.warn({ jobId: id, err: toError(error) }, 'job:lostReportFailed');
    }
  }
}
