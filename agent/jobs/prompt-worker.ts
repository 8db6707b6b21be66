import { type Job, Worker } from 'bullmq';

/**
 * A worker that begins each job as soon as it has it. BullMQ's own first takes all others that wait,
 * which costs every job a round trip to Redis, and those of a burst as many as there are.
 */
export class PromptWorker extends Worker {
  #hasJustTaken = false;

  /**
   * BullMQ calls this in turn until it is told that no job waits, and only then begins those that it
   * has. So it is told that after each job; it then waits for the queue's marker, which Redis sets
   * again with every job that is taken or added.
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
