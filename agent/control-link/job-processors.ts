import type { JobEnvelope, JobKind, JobResults } from '../../shared/jobs/jobs.ts';
import type { LargeBody } from '../commands/exec-actor.ts';

/** A job's result, and the bytes that travel beside it in the same frame. */
export interface JobAnswer<K extends JobKind = JobKind> {
  readonly result: JobResults[K];
  readonly body: readonly Buffer[] | LargeBody;
}

/**
 * Tells the caller's control node that the job has begun: if this host is lost, its outcome is
 * unknown.
 */
export type ReportBegun = () => void;

/** Sends a part of the result ahead, for a job whose payload asks for parts. */
export type SendPart = (part: Buffer) => void;

/** The processors, by kind of job. An AppError that a processor throws is the job's answer. */
export type JobProcessors<K extends JobKind> = {
  readonly [P in K]: (
    job: JobEnvelope<P>,
    reportBegun: ReportBegun,
    sendPart: SendPart,
  ) => Promise<JobAnswer<P>>;
};

export const answer = <R>(
  result: R,
  body: readonly Buffer[] = [],
): { result: R; body: readonly Buffer[] } => ({ result, body });

/** Hands the job to the processor of its kind. */
export function handleJob<K extends JobKind>(
  processors: JobProcessors<JobKind>,
  job: JobEnvelope<K>,
  reportBegun: ReportBegun,
  sendPart: SendPart,
): Promise<JobAnswer<K>> {
  return processors[job.kind](job, reportBegun, sendPart);
}
