import { type Job, Worker } from 'bullmq';

/**
 * A worker that begins each job as soon as it has it. BullMQ's own worker first takes all waiting
 * jobs: each job waits for one more round trip to Redis, and a burst for one per job of the burst.
 */
export class PromptWorker extends Worker {
  #hasJustTaken = false;

  /**
   * BullMQ calls this until no job waits, and only then begins the jobs that it has. So this
   * reports an empty queue after each job; BullMQ then waits for the queue's marker, which Redis
   * sets again whenever a job is taken or added.
   */
  protected override async moveToActive(token: string, name?: string): Promise<Job> {
    if (this.#hasJustTaken) {
      this.#hasJustTaken = false;
      return this.nextJobFromJobData();
    }
    const job = await super.moveToActive(token, name);
    this.#hasJustTaken = Boolean(job);
    return job;
  }
}
