import { Queue } from 'bullmq';
import { runInBackground } from '../../shared/background.ts';
import { queues } from '../../shared/directory/keys.ts';
import type { QueuedJob, QueuedJobs } from '../../shared/directory/queued-jobs.ts';
import { connectQueues, isRedisRefusal } from '../../shared/directory/redis.ts';
import type { RedisTarget } from '../../shared/tls/redis-tls.ts';
import { AppError, toError } from '../../shared/errors.ts';
import { newJobId } from '../../shared/ids.ts';
import type { JobSeal } from '../../shared/jobs/job-seal.ts';
import {
  type JobEnvelope,
  type JobKind,
  type JobPayload,
  type JobResults,
  jobKind,
} from '../../shared/jobs/jobs.ts';
import { REGION_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import { currentTraceparent, inSpan } from '../../shared/spans.ts';
import type { AgentHub } from './agent-hub.ts';
import type { OnPart } from './job-waiters.ts';
import { NotTaken } from './not-taken.ts';
import { Overdue } from './overdue.ts';

export interface JobCall<K extends JobKind> {
  readonly kind: K;
  readonly payload: JobPayload<K>;
  readonly hostId: string;
  readonly requestId: string;
  /** Milliseconds since the epoch. */
  readonly deadlineAt: number;
  /** Aborted when the caller hangs up; the job is then cancelled. */
  readonly signal?: AbortSignal;
  /**
   * For a job whose payload asks for parts. The reply does not repeat the parts that it was given.
   */
  readonly onPart?: OnPart;
}

export interface JobReply<K extends JobKind> {
  readonly result: JobResults[K];
  readonly body: readonly Buffer[];
}

/** How long after the job's deadline its answer may come. */
function answerGraceMs<K extends JobKind>({ kind, payload }: JobCall<K>): number {
  // The deadline is that of the beginning; the answer may wait for the end as long as the payload
  // asks.
  return Math.max(jobKind(kind).graceMs, 'waitMs' in payload ? payload.waitMs : 0);
}

/** Hosts take these from their queues at once, or not at all. */
const isTakenAtOnce = (kind: JobKind): boolean => jobKind(kind).queue !== 'host';

/**
 * Callers may simply ask again for what a host did not begin by its deadline, and for work on
 * disks. To a search its deadline is an end like any other.
 */
function explainTimeout(kind: JobKind, error: AppError): AppError {
  if (error.code !== 'timeout' || kind === 'grep.run') return error;
  const message = `${error.message}; try again`;
  if (error instanceof NotTaken) return new NotTaken(error.hostId, 'unavailable', message);
  if (jobKind(kind).queue !== 'host') return error;
  return new AppError('unavailable', message, { cause: error });
}

/** A host owes the answer to a job that it may have begun, and that it was to have ended by now. */
function explainSilence(kind: JobKind): AppError {
  const message = 'the host did not answer in time';
  if (jobKind(kind).isRepeatable) return new AppError('timeout', message);
  const unknown = `${message}; whether the work was done is not known`;
  return new Overdue('outcome_unknown', unknown);
}

export interface JobDispatchDeps {
  readonly hub: AgentHub;
  readonly nodeId: string;
  readonly redis: RedisTarget;
  readonly queuedJobs: QueuedJobs;
  readonly seal: JobSeal;
  readonly log: Logger;
}

/** A job that was queued, or was to be. */
interface Queued extends QueuedJob {
  readonly queue: Queue;
  readonly hostId: string;
}

/** Puts jobs into hosts' queues and waits for their answers on the agent links. */
export class JobDispatch {
  readonly #hub: AgentHub;
  readonly #nodeId: string;
  /**
   * A connection shared by all queues: a connection for each host's queues would soon be all that
   * Redis has.
   */
  readonly #redis: ReturnType<typeof connectQueues>;
  readonly #queuedJobs: QueuedJobs;
  readonly #seal: JobSeal;
  readonly #log: Logger;
  readonly #queues = new Map<string, Queue>();

  constructor({ hub, nodeId, redis, queuedJobs, seal, log }: JobDispatchDeps) {
    this.#hub = hub;
    this.#nodeId = nodeId;
    this.#redis = connectQueues(redis, ({ message: err }) => log.warn({ err }, 'queue:error'));
    this.#queuedJobs = queuedJobs;
    this.#seal = seal;
    this.#log = log;
  }

  /**
   * Runs a job on a host, at most once.
   * @throws NotTaken when the host has surely not begun it; AppError what the agent says, or:
   *   `outcome_unknown` when it may have begun and may not be repeated ({@link Overdue} when the
   *   host is still there), `unavailable` and `timeout` when it may be, `cancelled`
   */
  call<K extends JobKind>(call: JobCall<K>): Promise<JobReply<K>> {
    const id = newJobId();
    const attributes = { 'berth.job_id': id, 'berth.host_id': call.hostId };
    const span = { name: `send ${call.kind}`, kind: 'producer', attributes } as const;
    return inSpan(span, () => this.#call(id, call));
  }

  async #call<K extends JobKind>(id: string, call: JobCall<K>): Promise<JobReply<K>> {
    const queued = await this.#plan(call, id);
    const settlement = this.#hub.waiters.waitFor(id, call.hostId, call.onPart);
    const overdue = setTimeout(
      () => runInBackground('job.giveUpOverdue', () => this.#giveUpOverdue(queued, call.kind)),
      call.deadlineAt - Date.now() + answerGraceMs(call),
    );
    const untaken = setInterval(() => {
      if (!isTakenAtOnce(call.kind)) return;
      runInBackground('job.giveUpUntaken', () => this.#giveUpUntaken(queued));
    }, REGION_LIMITS.execTakenMsMax);
    const hangUp = (): void => this.#cancel(queued, call.hostId);
    call.signal?.addEventListener('abort', hangUp, { once: true });
    try {
      await this.#enqueue(queued, call);
      if (call.signal?.aborted === true) hangUp();
      const settled = await settlement;
      if (settled.kind === 'answer') return settled.answer as JobReply<K>;
      if (settled.kind === 'error') throw explainTimeout(call.kind, settled.error);
      throw await this.#explainLoss(queued, call.kind, settled.accepted);
    } finally {
      clearTimeout(overdue);
      clearInterval(untaken);
      call.signal?.removeEventListener('abort', hangUp);
    }
  }

  /** Leaves a job in the host's queue for when it is there; nobody waits for the answer. */
  async post<K extends JobKind>(call: JobCall<K>): Promise<void> {
    await this.#add(await this.#plan(call, newJobId()), call);
  }

  async close(): Promise<void> {
    await Promise.all([...this.#queues.values()].map((queue) => queue.close()));
    this.#redis.disconnect();
  }

  async #plan<K extends JobKind>({ kind, hostId }: JobCall<K>, id: string): Promise<Queued> {
    const queue = this.#queue(kind, hostId);
    return { queue, id, hostId, primary: await this.#queuedJobs.primary(queue) };
  }

  async #add<K extends JobKind>({ queue, id, primary }: Queued, call: JobCall<K>): Promise<void> {
    const { kind, payload, requestId, deadlineAt } = call;
    const traceparent = currentTraceparent();
    const job: JobEnvelope<K> = {
      id,
      kind,
      payload,
      replyTo: this.#nodeId,
      requestId,
      deadlineAt,
      ...(traceparent === undefined ? {} : { traceparent }),
      ...(primary === undefined ? {} : { primary }),
    };
    await queue.add(kind, this.#seal.seal(queue.name, job), {
      jobId: id,
      attempts: 1,
      removeOnComplete: true,
      removeOnFail: true,
    });
  }

  async #enqueue<K extends JobKind>(queued: Queued, call: JobCall<K>): Promise<void> {
    const { kind, requestId } = call;
    const { id } = queued;
    try {
      await this.#add(queued, call);
    } catch (error) {
      // Redis may have taken the job although its answer did not arrive.
      if (this.#hub.waiters.wasAccepted(id)) return;
      this.#log.warn({ jobId: id, requestId, err: toError(error) }, 'job:enqueueFailed');
      const reason = isRedisRefusal(error)
        ? new AppError('unavailable', 'the work could not be queued; try again')
        : await this.#explainLoss(queued, kind, false);
      this.#hub.waiters.giveUp(id, reason);
    }
  }

  /** A job taken back from the queue surely never began; else nobody can know. */
  async #explainLoss(queued: Queued, kind: JobKind, accepted: boolean): Promise<AppError> {
    if (!accepted && (await this.#takeBack(queued))) {
      const message = 'the host was lost before the work began; try again';
      return new NotTaken(queued.hostId, 'unavailable', message);
    }
    if (jobKind(kind).isRepeatable) {
      return new AppError('unavailable', 'the host was lost while it did this; try again');
    }
    return new AppError(
      'outcome_unknown',
      'the host was lost while it did this; whether the work was done is not known',
    );
  }

  /** @returns whether it will certainly never begin */
  async #takeBack(queued: Queued): Promise<boolean> {
    try {
      return await this.#queuedJobs.takeBack(queued);
    } catch {
      return false; // Redis cannot be reached.
    }
  }

  async #giveUpOverdue(queued: Queued, kind: JobKind): Promise<void> {
    const { id, hostId } = queued;
    const error = (await this.#takeBack(queued))
      ? new NotTaken(hostId, 'timeout', 'the host did not take the work in time')
      : explainSilence(kind);
    this.#hub.waiters.giveUp(id, error);
  }

  /** Hosts take commands at once: one that does not is cut off from Redis, or about to end. */
  async #giveUpUntaken(queued: Queued): Promise<void> {
    if (!(await this.#takeBack(queued))) return;
    const { id, hostId } = queued;
    const message = 'the host did not take the work; try again';
    this.#hub.waiters.giveUp(id, new NotTaken(hostId, 'unavailable', message));
  }

  #cancel(queued: Queued, hostId: string): void {
    const { id } = queued;
    runInBackground('job.cancel', async () => {
      if (!(await this.#takeBack(queued))) this.#hub.cancel(id, hostId);
      this.#hub.waiters.giveUp(id, new AppError('cancelled', 'the caller hung up'));
    });
  }

  #queue(kind: JobKind, hostId: string): Queue {
    const name = queues[jobKind(kind).queue](hostId);
    const known = this.#queues.get(name);
    if (known !== undefined) return known;
    const queue = new Queue(name, {
      connection: this.#redis,
      prefix: queues.prefix(hostId),
      skipMetasUpdate: true,
    });
    queue.on('error', () => undefined); // The connection reports these errors.
    this.#queues.set(name, queue);
    return queue;
  }
}
