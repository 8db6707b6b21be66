import { type Job, Worker } from 'bullmq';
import { runInBackground } from '../../shared/background.ts';
import { queues } from '../../shared/directory/keys.ts';
import type { Directory } from '../../shared/directory/directory.ts';
import { queueConnection } from '../../shared/directory/redis.ts';
import { AppError, toError } from '../../shared/errors.ts';
import type { JobSeal } from '../../shared/job-seal.ts';
import {
  isCommand,
  isSandboxJob,
  type JobEnvelope,
  type JobKind,
  type SandboxJobKind,
} from '../../shared/jobs.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { Logger } from '../../shared/log.ts';
import type { StorageWatch } from '../../shared/storage-watch.ts';
import type { DiskRef } from '../disks/disk-actor.ts';
import type { ActorRegistry } from '../execs/registry.ts';
import { toAppError } from '../system/to-app-error.ts';
import type { ControlLinks } from '../links/control-link.ts';
import type { LargeBody } from '../execs/exec-actor.ts';
import { FairSlots } from '../queues/fair-slots.ts';
import { JobTurns } from './job-turns.ts';
import { LostJobs } from './lost-jobs.ts';
import type { Histogram } from '../../shared/metrics.ts';
import type { SandboxJobs } from './sandbox-jobs.ts';

/** Jobs beyond those that may run or wait, taken to be refused at once. */
const REFUSALS_AT_ONCE = 100;
const MESSAGE_LENGTH_MAX = 4000;
const LARGE_ANSWER_BYTES = 1024 ** 2;
const NEVER_ABORTED = new AbortController().signal;

export type JobDurations = Histogram<'kind' | 'outcome'>;
export type JobWaits = Histogram<'kind'>;

export interface JobWorkerDeps {
  readonly hostId: string;
  readonly redisUrl: string;
  readonly seal: JobSeal;
  readonly execSlots: number;
  readonly directory: Directory;
  readonly registry: ActorRegistry;
  readonly links: ControlLinks;
  readonly storage: StorageWatch;
  /** Undefined when this host runs none. */
  readonly sandboxes: SandboxJobs | undefined;
  readonly log: Logger;
  readonly jobDurations: JobDurations;
  readonly jobWaits: JobWaits;
}

interface Answer {
  readonly result: object;
  readonly body: readonly Buffer[] | LargeBody;
}

type DiskJobKind = Exclude<JobKind, SandboxJobKind>;

const NOTHING: Answer = { result: {}, body: [] };

/**
 * Takes this host's jobs from Redis and turns them into messages to actors; answers go to the
 * control node that waits, over its link. Redis never delivers a job twice: one attempt, and a job
 * whose agent died is dropped, not taken again (DESIGN "Delivery").
 */
export class JobWorker {
  readonly #deps: JobWorkerDeps;
  readonly #workers: Worker[];
  readonly #lostJobs: LostJobs[] = [];
  readonly #turns = new JobTurns();
  readonly #largeAnswers = new FairSlots({ count: 1, perAccountMax: 1, refusal: '' });

  constructor(deps: JobWorkerDeps) {
    this.#deps = deps;
    this.#workers = [
      // A queue knows no accounts: jobs are taken from it at once, and wait in FairSlots.
      this.#work(queues.exec(deps.hostId), deps.execSlots + LIMITS.execsWaitingMax),
      this.#work(queues.sandbox(deps.hostId), LIMITS.sandboxJobsAtOnceMax),
      this.#work(queues.host(deps.hostId), LIMITS.hostJobsAtOnceMax + LIMITS.hostJobsWaitingMax),
    ];
  }

  /** Stops taking jobs; resolves when those at work are answered. */
  async close(): Promise<void> {
    for (const lost of this.#lostJobs) lost.close();
    this.#turns.close();
    await Promise.all(this.#workers.map((worker) => worker.close()));
  }

  #work(queue: string, concurrency: number): Worker {
    const { hostId, redisUrl, log } = this.#deps;
    const process = async (job: Job): Promise<void> => {
      const id = job.id ?? '';
      if (!lost.begin(id)) return;
      await this.#process(job).finally(() => lost.end(id));
    };
    const worker: Worker = new Worker(queue, process, {
      connection: queueConnection(redisUrl, { blocking: true }),
      prefix: queues.prefix(hostId),
      concurrency: concurrency + REFUSALS_AT_ONCE,
      maxStalledCount: 0,
      removeOnComplete: { count: 0 },
      removeOnFail: { count: 0 },
    });
    const lost = new LostJobs(worker, (job) => this.#refuseLost(job), log);
    this.#lostJobs.push(lost);
    worker.on('error', (error) => log.warn({ queue, err: error.message }, 'worker:error'));
    return worker;
  }

  #open({ queueName, id = '', data }: Job): JobEnvelope {
    return this.#deps.seal.open(queueName, id, data);
  }

  #refuseLost(queued: Job): void {
    const { links, log } = this.#deps;
    const { id: jobId, replyTo, requestId } = this.#open(queued);
    log.warn({ jobId, requestId }, 'job:lost');
    const message = 'the work was lost before it began; try again';
    links.send(replyTo, { type: 'error', jobId, code: 'unavailable', message });
  }

  async #process(queued: Job): Promise<void> {
    const { links, log, jobDurations, jobWaits } = this.#deps;
    const job = this.#open(queued); // A queue entry that is not ours fails here and is gone.
    const waitedMs = Math.max(0, Date.now() - queued.timestamp);
    jobWaits.observe({ kind: job.kind }, waitedMs / 1000);
    const begunAt = performance.now();
    let outcome = 'ok';
    try {
      await this.#answer(job, await this.#run(job));
    } catch (error) {
      const failure = toAppError(error);
      outcome = failure.code;
      const message = failure.message.slice(0, MESSAGE_LENGTH_MAX);
      links.send(job.replyTo, { type: 'error', jobId: job.id, code: failure.code, message });
      if (failure.code === 'internal_server_error') {
        log.error({ jobId: job.id, requestId: job.requestId, err: toError(error) }, 'job:failed');
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

  async #answer(job: JobEnvelope, { result, body }: Answer): Promise<void> {
    const { links } = this.#deps;
    const send = async (parts: readonly Buffer[]): Promise<void> => {
      const lengths = parts.map((part) => part.length);
      const frame = { type: 'result', jobId: job.id, result, body: lengths } as const;
      await links.sendWhole(job.replyTo, frame, parts);
    };
    if (!('read' in body)) return send(body);
    try {
      if (body.bytes <= LARGE_ANSWER_BYTES) return await send(await body.read());
      // It is in memory several times while it is sent, so only one is at a time.
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

  async #run(job: JobEnvelope): Promise<Answer> {
    const { links } = this.#deps;
    if (job.deadlineAt <= Date.now()) {
      throw new AppError('timeout', 'the request waited past its deadline and was not begun');
    }
    const turn = await this.#turns.take(job);
    try {
      if (!isCommand(job.kind)) links.send(job.replyTo, { type: 'accepted', jobId: job.id });
      if (isSandboxJob(job)) return await this.#runSandboxJob(job);
      return await this.#runDiskJob(job as JobEnvelope<DiskJobKind>);
    } finally {
      turn?.release();
    }
  }

  async #runDiskJob(job: JobEnvelope<DiskJobKind>): Promise<Answer> {
    const { registry } = this.#deps;
    switch (job.kind) {
      case 'exec.run': {
        return this.#runExec(job as JobEnvelope<'exec.run'>);
      }
      case 'grep.run': {
        return this.#runGrep(job as JobEnvelope<'grep.run'>);
      }
      case 'disk.create': {
        this.#deps.storage.refuseIfLow();
        await registry.disk(diskRef(job)).create();
        return NOTHING;
      }
      case 'disk.record': {
        await registry.disk(diskRef(job)).record();
        return NOTHING;
      }
      case 'disk.release': {
        await registry.disk(diskRef(job)).release();
        return NOTHING;
      }
      case 'disk.stat': {
        const { accountId, diskId, key } = (job as JobEnvelope<'disk.stat'>).payload;
        return { result: await registry.statFile({ accountId, diskId }, key, job.id), body: [] };
      }
      case 'disk.delegations': {
        const { delegations } = registry.disk(diskRef(job));
        return { result: { delegations }, body: [] };
      }
      case 'disk.revoke': {
        const { clientId, inodeId } = (job as JobEnvelope<'disk.revoke'>).payload;
        return {
          result: { revoked: registry.disk(diskRef(job)).revoke(clientId, inodeId) },
          body: [],
        };
      }
      case 'disk.delete': {
        await registry.deleteDisk(diskRef(job));
        return NOTHING;
      }
    }
  }

  async #runSandboxJob(job: JobEnvelope<SandboxJobKind>): Promise<Answer> {
    const { sandboxes } = this.#deps;
    if (sandboxes === undefined) {
      throw new AppError('not_enabled', 'this host runs no sandboxes: see GUEST_DIR');
    }
    return sandboxes.handle(job);
  }

  async #runExec(job: JobEnvelope<'exec.run'>): Promise<Answer> {
    const { registry, links, storage } = this.#deps;
    const { id, requestId, deadlineAt, payload } = job;
    storage.refuseIfLow();
    let begunAt = performance.now();
    const report = await registry.runExec({ id, requestId, deadlineAt, ...payload }, () => {
      begunAt = performance.now();
      links.send(job.replyTo, { type: 'accepted', jobId: id });
    });
    const durationMs = performance.now() - begunAt;
    for (const diskId of new Set(diskIdsOf(job))) {
      const ref = { accountId: payload.accountId, diskId };
      runInBackground('disk.recordUse', () => this.#recordUse(ref, durationMs));
    }
    return { result: report.outcome, body: report.output };
  }

  /** Needs no storage: a host that is full still searches. */
  async #runGrep(job: JobEnvelope<'grep.run'>): Promise<Answer> {
    const { registry, links } = this.#deps;
    const { id, requestId, deadlineAt, payload } = job;
    let begunAt = performance.now();
    const report = await registry.runGrep({ id, requestId, deadlineAt, ...payload }, () => {
      begunAt = performance.now();
      links.send(job.replyTo, { type: 'accepted', jobId: id });
    });
    const durationMs = performance.now() - begunAt;
    runInBackground('disk.recordUse', () => this.#recordUse(payload, durationMs));
    return { result: report.outcome, body: [report.matches] };
  }

  /** Figures only: the answer does not wait for them. */
  async #recordUse(ref: DiskRef, durationMs: number): Promise<void> {
    const { registry, directory, log } = this.#deps;
    try {
      const usedBytes = await registry.disk(ref).usedBytes();
      if (usedBytes === undefined) return;
      const at = new Date().toISOString();
      const disk = { accountId: ref.accountId, id: ref.diskId };
      await directory.disks.recordUse(disk, { at, usedBytes, durationMs });
    } catch (error) {
      log.warn({ diskId: ref.diskId, err: toError(error) }, 'disk:useNotRecorded');
    }
  }
}

const diskRef = (job: JobEnvelope): DiskRef => (job as JobEnvelope<'disk.record'>).payload;

const sandboxIdOf = ({ payload }: JobEnvelope): { sandboxId?: string } =>
  'sandboxId' in payload ? { sandboxId: payload.sandboxId } : {};

function diskIdsOf({ payload }: JobEnvelope): string[] {
  if ('mounts' in payload) return payload.mounts.map(({ diskId }) => diskId);
  return 'diskId' in payload ? [payload.diskId] : [];
}
