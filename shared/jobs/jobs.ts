import Type from 'typebox';
import { nodeIdPattern } from '../ids.ts';
import { LIMITS } from '../limits.ts';
import { compile, taggedUnion } from '../validate.ts';
import { commandKinds, type CommandResults } from './command-kinds.ts';
import { diskKinds, type DiskResults } from './disk-kinds.ts';
import type { JobKindRow } from './job-kind.ts';
import { sandboxKinds, type SandboxResults } from './sandbox-kinds.ts';

const kinds = { ...commandKinds, ...diskKinds, ...sandboxKinds } as const;

export type JobKind = keyof typeof kinds;
export type CommandJobKind = keyof typeof commandKinds;
export type DiskJobKind = keyof typeof diskKinds;
export type ImageJobKind = 'image.build';
export type SandboxJobKind = Exclude<keyof typeof sandboxKinds, ImageJobKind>;

/** Properties of all jobs of the kind. */
export const jobKind = (kind: JobKind): Omit<JobKindRow, 'payload'> => kinds[kind];

export type JobPayload<K extends JobKind> = Type.Static<(typeof kinds)[K]['payload']>;

/** Results of each kind of job, over the agent link. */
export interface JobResults extends CommandResults, DiskResults, SandboxResults {}

interface Envelope<K extends JobKind> {
  readonly id: string;
  readonly kind: K;
  readonly payload: JobPayload<K>;
  /** The control node that waits for the answer. */
  readonly replyTo: string;
  readonly requestId: string;
  /** A job that is not begun by then is dropped; work that is not done by then is ended. */
  readonly deadlineAt: number;
  /** Trace context of the span that waits for the answer, while traces are on. */
  readonly traceparent?: string;
  /** The primary that it was queued at (`primaryOf`); undefined where Redis does not fail over. */
  readonly primary?: string;
}

/** A job in a host's queue, one of these kinds. Times are milliseconds since the epoch. */
export type JobEnvelope<K extends JobKind = JobKind> = { [P in K]: Envelope<P> }[K];

const envelopeOf = (kind: string, { payload }: JobKindRow) =>
  Type.Object({
    id: Type.String({ pattern: '^[0-9a-f-]{36}$' }),
    kind: Type.Literal(kind),
    payload,
    replyTo: Type.String({ pattern: nodeIdPattern }),
    requestId: Type.String({ minLength: 1, maxLength: 64 }),
    deadlineAt: Type.Integer({ minimum: 0 }),
    traceparent: Type.Optional(Type.String({ maxLength: LIMITS.traceparentLengthMax })),
    primary: Type.Optional(Type.String({ pattern: '^[0-9a-f]{40}$' })),
  });

/** The schema of each kind's jobs. */
export const jobSchemas = Object.entries(kinds).map(([kind, row]) => envelopeOf(kind, row));
const checkJob = compile(Type.Unsafe<JobEnvelope>(taggedUnion('kind', jobSchemas)));

/** @throws AppError `bad_request` when a queue holds something that is not one of our jobs */
export const parseJob = (data: unknown): JobEnvelope => checkJob(data, 'job');

/**
 * The fields of a job that every version has, so that one of an unknown version can be answered.
 */
const JobSender = Type.Object({
  kind: Type.String({ maxLength: 64 }),
  id: Type.String({ minLength: 1, maxLength: 64 }),
  replyTo: Type.String({ pattern: nodeIdPattern }),
  requestId: Type.String({ minLength: 1, maxLength: 64 }),
});
export type JobSender = Type.Static<typeof JobSender>;
const checkSender = compile(JobSender);

/** @throws AppError `bad_request` when it is no job of any version */
export const parseJobSender = (data: unknown): JobSender => checkSender(data, 'job');
