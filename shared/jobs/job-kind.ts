import Type from 'typebox';
import { accountIdPattern, diskIdPattern } from '../ids.ts';
import { LIMITS } from '../limits.ts';

/** Properties of all jobs of a kind. */
export interface JobKindRow {
  /** Which of the host's queues takes it (`shared/directory/keys.ts`). */
  readonly queue: 'exec' | 'sandbox' | 'host';
  /** A caller who lost the answer may ask again, whatever became of the job. */
  readonly isRepeatable: boolean;
  /** How long after its deadline the answer may come, in milliseconds. */
  readonly graceMs: number;
  readonly payload: Type.TObject | Type.TUnsafe<object>;
}

/** Past the deadline the agent still has to kill the command, clear up and answer. */
export const ANSWER_GRACE_MS = 2 * LIMITS.killGraceMs;

export const DiskRef = Type.Object({
  accountId: Type.String({ pattern: accountIdPattern }),
  diskId: Type.String({ pattern: diskIdPattern }),
});
