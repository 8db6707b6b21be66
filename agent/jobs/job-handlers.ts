import type { JobEnvelope, JobKind, JobResults } from '../../shared/jobs/jobs.ts';
import type { LargeBody } from '../execs/exec-actor.ts';

/** What a job comes to: its result, and bytes beside it. */
export interface JobAnswer<K extends JobKind = JobKind> {
  readonly result: JobResults[K];
  readonly body: readonly Buffer[] | LargeBody;
}

/** Tells the caller's control node that the job has begun: from here on its outcome may be unknown. */
export type ReportBegun = () => void;

/** How this host does jobs of these kinds. A handler throws AppError what the job comes to. */
export type JobHandlers<K extends JobKind> = {
  readonly [P in K]: (job: JobEnvelope<P>, reportBegun: ReportBegun) => Promise<JobAnswer<P>>;
};

export const answer = <R>(
  result: R,
  body: readonly Buffer[] = [],
): { result: R; body: readonly Buffer[] } => ({ result, body });

/** Hands the job to the handler of its kind. */
export function handleJob<K extends JobKind>(
  handlers: JobHandlers<JobKind>,
  job: JobEnvelope<K>,
  reportBegun: ReportBegun,
): Promise<JobAnswer<K>> {
  return handlers[job.kind](job, reportBegun);
}
