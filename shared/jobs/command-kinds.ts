import Type from 'typebox';
import { accountIdPattern, diskIdPattern } from '../ids.ts';
import { SCHEMA_LIMITS } from '../schemas/limits.ts';
import type { GrepResult } from '../schemas/grep.ts';
import { ANSWER_GRACE_MS, DiskRef, type JobKindRow } from './job-kind.ts';

/** A search may go on without a caller: nothing is lost when its answer is not awaited. */
const GREP_ANSWER_GRACE_MS = 1_000;

const inContainer = { queue: 'exec', isRepeatable: false, graceMs: ANSWER_GRACE_MS } as const;

/** A disk, or a directory of one, as a command sees it; `path` is below the mount root. */
const ExecMount = Type.Object({
  diskId: Type.String({ pattern: diskIdPattern }),
  path: Type.String({ maxLength: SCHEMA_LIMITS.mountPathBytesMax }),
  subdirectory: Type.String({ maxLength: SCHEMA_LIMITS.mountPathBytesMax }),
  readOnly: Type.Boolean(),
  /** Directories or files below the mount to hold exclusively; empty text: the mount itself. */
  checkouts: Type.Array(Type.String({ maxLength: SCHEMA_LIMITS.mountPathBytesMax }), {
    maxItems: SCHEMA_LIMITS.checkoutsPerMountMax,
  }),
  /** How long to wait for each checkout; 0: not at all. */
  checkoutWaitMs: Type.Integer({ minimum: 0 }),
});
export type ExecMount = Type.Static<typeof ExecMount>;

/** Jobs that run in a container when their turn has come. */
export const commandKinds = {
  /** Runs a command on its disks; at most once. */
  'exec.run': {
    ...inContainer,
    payload: Type.Object({
      accountId: Type.String({ pattern: accountIdPattern }),
      mounts: Type.Array(ExecMount, { minItems: 1, maxItems: SCHEMA_LIMITS.disksPerExecMax }),
      command: Type.String({ minLength: 1, maxLength: SCHEMA_LIMITS.commandBytesMax }),
    }),
  },
  /** Searches a directory of a disk; writes nothing, so it may be repeated. */
  'grep.run': {
    ...inContainer,
    isRepeatable: true,
    graceMs: GREP_ANSWER_GRACE_MS,
    payload: Type.Interface([DiskRef], {
      directory: Type.String({ maxLength: SCHEMA_LIMITS.mountPathBytesMax }),
      pattern: Type.String({ minLength: 1, maxLength: SCHEMA_LIMITS.grepPatternBytesMax }),
      recursive: Type.Boolean(),
      concurrency: Type.Integer({ minimum: 1, maximum: SCHEMA_LIMITS.grepConcurrencyMax }),
      maxResults: Type.Integer({ minimum: 1, maximum: SCHEMA_LIMITS.grepResultsMax }),
      /**
       * Whether matches may be sent as parts when they are found. An agent may send none all the
       * same.
       */
      inParts: Type.Optional(Type.Boolean()),
    }),
  },
} as const satisfies Record<string, JobKindRow>;

/** How a command ended; its output travels beside as bytes. */
export interface ExecOutcome {
  readonly exitCode: number;
  /** From the command's start to its end. */
  readonly executeMs: number;
  /** From the command's end until its last trace was gone and the answer was sent. */
  readonly endMs: number;
}

/** How a search ended; the matches that were not sent as parts travel beside, as one JSON array. */
export type GrepOutcome = Omit<GrepResult, 'matches' | 'durationMs'>;

export interface CommandResults {
  'exec.run': ExecOutcome;
  'grep.run': GrepOutcome;
}
