import { Job, type Worker } from 'bullmq';
import { repeatInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';

const LOOK_EVERY_MS = 2_000;

/**
 * Finds the jobs of a queue that Redis handed out on a connection that broke just then: the queue
 * counts them as at work, but nobody has them, and their callers would wait in vain.
 */
export class LostJobs {
  readonly #worker: Worker;
  readonly #onLost: (job: Job) => void;
  readonly #log: Logger;
  readonly #stop: () => void;
  readonly #startedAt = Date.now();
  readonly #atWork = new Set<string>();
  /** Done here, although Redis may not have heard of it yet. */
  readonly #done = new Set<string>();
  /** Not at work here although the queue says so, at the last look. */
  #absent: ReadonlySet<string> = new Set();
  #lost: ReadonlySet<string> = new Set();

  /** @param onLost the job was lost before it began, and never will begin */
  constructor(worker: Worker, onLost: (job: Job) => void, log: Logger) {
    this.#worker = worker;
    this.#onLost = onLost;
    this.#log = log;
    this.#stop = repeatInBackground('job.findLost', LOOK_EVERY_MS, () => this.#look());
  }

  /** Notes that a job came. @returns false when it was given up: it must not begin any more */
  begin(id: string): boolean {
    if (this.#lost.has(id)) return false;
    this.#atWork.add(id);
    return true;
  }

  end(id: string): void {
    this.#atWork.delete(id);
    this.#done.add(id);
  }

  close(): void {
    this.#stop();
  }

  async #look(): Promise<void> {
    try {
      const doneBefore = [...this.#done];
      const [active = []]: string[][] = await this.#worker.backend.getRanges(['active']);
      const absent = active.filter((id) => !this.#atWork.has(id) && !this.#done.has(id));
      for (const id of doneBefore) if (!active.includes(id)) this.#done.delete(id);
      // Twice in a row: a job may be on its way here, or be leaving the queue.
      const lost = absent.filter((id) => this.#absent.has(id));
      const found = lost.filter((id) => !this.#lost.has(id));
      this.#absent = new Set(absent);
      this.#lost = new Set(lost);
      for (const id of found) await this.#report(id);
    } catch (error) {
      this.#log.warn({ err: toError(error) }, 'job:lostNotSought');
    }
  }

  async #report(id: string): Promise<void> {
    const job = await Job.fromId(this.#worker, id);
    // What a former agent of this host took may have begun.
    if (job === undefined || (job.processedOn ?? this.#startedAt) < this.#startedAt) return;
    this.#onLost(job);
  }
}
