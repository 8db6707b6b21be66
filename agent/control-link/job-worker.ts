import { setTimeout as sleep } from 'node:timers/promises';
import type { Job, Worker } from 'bullmq';
import { Redis } from 'ioredis';
import { runInBackground } from '../../shared/background.ts';
import { queues } from '../../shared/directory/keys.ts';
import { primaryOf } from '../../shared/directory/primary-of.ts';
import { queueConnection } from '../../shared/directory/redis.ts';
import type { RedisTarget } from '../../shared/tls/redis-tls.ts';
import { AppError, toError } from '../../shared/errors.ts';
import type { JobSeal } from '../../shared/jobs/job-seal.ts';
import { type JobEnvelope, type JobKind, jobKind, type JobSender } from '../../shared/jobs/jobs.ts';
import { COMMAND_LIMITS } from '../commands/limits.ts';
import { LINK_LIMITS } from './limits.ts';
import type { AgentFrame } from '../../shared/links/stream-protocol.ts';
import { continueInSpan, noteSpan, type OpenSpan } from '../../shared/spans.ts';
import type { Logger } from '../../shared/log.ts';
import type { ControlLinks } from './control-link.ts';
import { FairTurns } from '../system/queues/fair-turns.ts';
import { toJobFailure } from './job-failure.ts';
import { handleJob, type JobAnswer, type JobProcessors } from './job-processors.ts';
import { isDiscard, JobTurns } from './job-turns.ts';
import { LostJobs } from './lost-jobs.ts';
import { PromptWorker } from './prompt-worker.ts';
import type { Histogram } from '../../shared/metrics.ts';
import { MiB } from '../../shared/units.ts';

/**
 * How many jobs beyond those that may run or wait are taken from the queue, to be refused at once.
 */
const REFUSALS_AT_ONCE = 100;
/**
 * How much later than its answer a job leaves its queue. Redis syncs that, and the entry of the
 * audit for which the caller waits would wait for the sync first.
 */
const LEAVES_AFTER_MS = 10;
/** When Redis is asked for a job again after it has refused to hand one out. */
const RETRY_MS = 1_000;
const MESSAGE_LENGTH_MAX = 4000;
const LARGE_ANSWER_BYTES = MiB;
const NEVER_ABORTED = new AbortController().signal;

export type JobDurations = Histogram<'kind' | 'outcome'>;
export type JobWaits = Histogram<'kind'>;

export interface JobWorkerDeps {
  readonly hostId: string;
  readonly redis: RedisTarget;
  readonly seal: JobSeal;
  readonly execSlots: number;
  readonly processors: JobProcessors<JobKind>;
  readonly links: ControlLinks;
  readonly log: Logger;
  readonly jobDurations: JobDurations;
  readonly jobWaits: JobWaits;
}

/**
 * Takes this host's jobs from Redis and hands each to its processor. The answer goes to the control
 * node that sent the job, over its agent link. A job is delivered at most once: BullMQ makes one
 * attempt, and drops a job whose agent died instead of delivering it again (docs/decisions/0003).
 */
export class JobWorker {
  readonly #deps: JobWorkerDeps;
  /** The connection that all queues share; each waits for jobs on another one of its own. */
  readonly #redis: Redis;
  readonly #workers: Readonly<Record<'exec' | 'sandbox' | 'host', Worker>>;
  readonly #lostJobs: LostJobs[] = [];
  readonly #turns = new JobTurns();
  #isDraining = false;
  #isClosed = false;
  readonly #largeAnswers = new FairTurns({ count: 1, perAccountMax: 1, refusal: '' });

  constructor(deps: JobWorkerDeps) {
    this.#deps = deps;
    const prefix = queues.prefix(deps.hostId);
    this.#redis = new Redis(queueConnection(deps.redis, { blocking: true, prefix }));
    // The workers report its errors; one that comes after they have closed is of no interest.
    this.#redis.on('error', () => undefined);
    this.#workers = {
      // A queue knows no accounts, so jobs are taken from it at once and wait for their turn here.
      exec: this.#work(queues.exec(deps.hostId), deps.execSlots + COMMAND_LIMITS.execsWaitingMax),
      sandbox: this.#work(queues.sandbox(deps.hostId), LINK_LIMITS.sandboxJobsAtOnceMax),
      host: this.#work(
        queues.host(deps.hostId),
        LINK_LIMITS.hostJobsAtOnceMax + LINK_LIMITS.hostJobsWaitingMax,
      ),
    };
  }

  /** The queues that it takes jobs from, by what they are for. */
  get queues(): Readonly<Record<'exec' | 'sandbox' | 'host', Pick<Worker, 'toKey'>>> {
    return this.#workers;
  }

  /** Refuses sandbox jobs from now on. The exec registry refuses commands by itself. */
  drain(): void {
    this.#isDraining = true;
  }

  /** Stops taking jobs; resolves when the running ones have been answered. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const lost of this.#lostJobs) lost.close();
    this.#turns.close();
    await Promise.all(Object.values(this.#workers).map((worker) => worker.close()));
    this.#redis.disconnect();
  }

  #work(queue: string, concurrency: number): Worker {
    const { hostId, log } = this.#deps;
    const process = async (job: Job): Promise<void> => {
      const id = job.id ?? '';
      if (!lost.begin(id)) return;
      // Read now: the job came from the primary that the connection has at this moment.
      const primary = primaryOf(this.#redis);
      await this.#process(job, primary).finally(() => lost.end(id));
      await sleep(LEAVES_AFTER_MS);
    };
    const worker: Worker = new PromptWorker(queue, process, {
      connection: this.#redis,
      prefix: queues.prefix(hostId),
      autorun: false,
      concurrency: concurrency + REFUSALS_AT_ONCE,
      runRetryDelay: RETRY_MS,
      maxStalledCount: 0,
      removeOnComplete: { count: 0 },
      removeOnFail: { count: 0 },
    });
    const lost = new LostJobs(worker, (job) => this.#refuseLost(job), log);
    this.#lostJobs.push(lost);
    worker.on('error', (error) => log.warn({ queue, err: error.message }, 'worker:error'));
    runInBackground('job.take', async () => {
      await lost.known;
      if (!this.#isClosed) await worker.run();
    });
    return worker;
  }

  #open({ queueName, id = '', data }: Job): JobEnvelope {
    return this.#deps.seal.open(queueName, id, data);
  }

  #senderOf({ queueName, id = '', data }: Job): JobSender {
    return this.#deps.seal.sender(queueName, id, data);
  }

  /**
   * Opens a job. One that this version does not know is answered: a newer control node sent it.
   * @throws AppError for an entry that control did not seal
   */
  #openKnown(queued: Job): JobEnvelope | undefined {
    const { links, log } = this.#deps;
    try {
      return this.#open(queued);
    } catch (error) {
      const { id: jobId, replyTo, requestId, kind } = this.#senderOf(queued);
      log.warn({ jobId, requestId, kind, err: toError(error) }, 'job:notUnderstood');
      const message = `the host does not understand this job (${kind}); it was not begun. Upgrade its agent`;
      links.send(replyTo, { type: 'error', jobId, code: 'unavailable', message });
      return undefined;
    }
  }

  #refuseLost(queued: Job): void {
    const { links, log } = this.#deps;
    const { id: jobId, replyTo, requestId } = this.#senderOf(queued);
    log.warn({ jobId, requestId }, 'job:lost');
    const message = 'the job was lost before it began; try again';
    links.send(replyTo, { type: 'error', jobId, code: 'unavailable', message });
  }

  async #process(queued: Job, primary: string | undefined): Promise<void> {
    // Throws for an entry that control did not seal; BullMQ drops it.
    const job = this.#openKnown(queued);
    if (job === undefined) return;
    const attributes = { 'berth.job_id': job.id, 'berth.request_id': job.requestId };
    const span = { name: job.kind, kind: 'consumer', attributes } as const;
    await continueInSpan(job.traceparent, span, (open) =>
      this.#do(job, { queuedAt: queued.timestamp, primary }, open),
    );
  }

  async #do(job: JobEnvelope, { queuedAt, primary }: Origin, span: OpenSpan): Promise<void> {
    const { links, log, jobDurations, jobWaits } = this.#deps;
    noteSpan({ name: 'queue.wait' }, queuedAt);
    const waitedMs = Math.max(0, Date.now() - queuedAt);
    jobWaits.observe({ kind: job.kind }, waitedMs / 1000);
    const begunAt = performance.now();
    let outcome = 'ok';
    try {
      this.#refuseFromFormer(job, primary);
      await this.#answer(job, await this.#run(job));
    } catch (error) {
      const failure = toJobFailure(job.kind, error);
      outcome = failure.code;
      span.fail(outcome);
      const message = failure.message.slice(0, MESSAGE_LENGTH_MAX);
      links.send(job.replyTo, { type: 'error', jobId: job.id, code: failure.code, message });
      if (!(error instanceof AppError)) {
        const level = failure.code === 'internal_server_error' ? 'error' : 'warn';
        log[level]({ jobId: job.id, requestId: job.requestId, err: toError(error) }, 'job:failed');
      }
    }
    const durationMs = performance.now() - begunAt;
    jobDurations.observe({ kind: job.kind, outcome }, durationMs / 1000);
    log.info(
      {
        jobId: job.id,
        requestId: job.requestId,
        kind: job.kind,
        diskIds: diskIdsOf(job),
        ...sandboxIdOf(job),
        outcome,
        waitedMs,
        durationMs: Math.round(durationMs),
      },
      'job:ended',
    );
  }

  /**
   * A replica that became the primary may not have heard that a job was taken, or ended. So a job
   * is begun only when it comes from the primary that it was queued at.
   */
  #refuseFromFormer({ id, kind, primary: former, requestId }: JobEnvelope, primary?: string): void {
    if (former === primary || jobKind(kind).isRepeatable) return;
    this.#deps.log.warn({ jobId: id, requestId, kind, former, primary }, 'job:outlivedPrimary');
    throw new AppError(
      'outcome_unknown',
      'Redis failed over while this was queued; whether the work was done is not known',
    );
  }

  async #answer(job: JobEnvelope, { result, body }: JobAnswer): Promise<void> {
    const { links } = this.#deps;
    const send = async (parts: readonly Buffer[]): Promise<void> => {
      const lengths = parts.map((part) => part.length);
      const frame = { type: 'result', jobId: job.id, result, body: lengths } as const;
      await links.sendWhole(job.replyTo, frame, parts);
    };
    if (!('read' in body)) return send(body);
    try {
      if (body.bytes <= LARGE_ANSWER_BYTES) return await send(await body.read());
      // Sending copies the answer several times in memory, so large answers are sent one at a time.
      const turn = await this.#largeAnswers.acquire(job.payload.accountId, NEVER_ABORTED);
      try {
        await send(await body.read());
      } finally {
        turn.release();
      }
    } finally {
      await body.close();
    }
  }

  async #run(job: JobEnvelope): Promise<JobAnswer> {
    if (job.deadlineAt <= Date.now()) {
      throw new AppError(
        'timeout',
        'the deadline passed before the job was taken from its queue; it was not begun',
      );
    }
    if (this.#isDraining && isOfSandbox(job) && !isDiscard(job.kind)) {
      throw new AppError('unavailable', 'the host is shutting down; try again');
    }
    const turn = await this.#turns.take(job);
    const reportBegun = (): void => {
      this.#deps.links.send(job.replyTo, { type: 'accepted', jobId: job.id });
    };
    const sendPart = (part: Buffer): void => {
      const frame: AgentFrame = { type: 'part', jobId: job.id, body: [part.length] };
      this.#deps.links.send(job.replyTo, frame, [part]);
    };
    try {
      // A command reports by itself, when its own turn has come.
      if (jobKind(job.kind).queue !== 'exec') reportBegun();
      return await handleJob(this.#deps.processors, job, reportBegun, sendPart);
    } finally {
      turn?.release();
    }
  }
}

/** Where a job comes from. */
interface Origin {
  /** Milliseconds since the epoch. */
  readonly queuedAt: number;
  /** The primary that it was taken from. */
  readonly primary: string | undefined;
}

const isOfSandbox = ({ kind }: JobEnvelope): boolean => jobKind(kind).queue === 'sandbox';

const sandboxIdOf = ({ payload }: JobEnvelope): { sandboxId?: string } =>
  'sandboxId' in payload ? { sandboxId: payload.sandboxId } : {};

function diskIdsOf({ payload }: JobEnvelope): string[] {
  if ('mounts' in payload) return payload.mounts.map(({ diskId }) => diskId);
  return 'diskId' in payload ? [payload.diskId] : [];
}
