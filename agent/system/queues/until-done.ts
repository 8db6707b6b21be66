import { Backoff } from '../../../shared/backoff.ts';
import { SYSTEM_LIMITS } from '../limits.ts';

/**
 * Retries a failed removal with exponential backoff until it succeeds.
 * @param attempt returns whether it has succeeded; must not throw
 * @param signal ends the attempts when it is aborted
 */
export async function repeatUntilDone(
  attempt: () => Promise<boolean>,
  signal: AbortSignal,
): Promise<void> {
  const backoff = new Backoff({
    min: SYSTEM_LIMITS.removalRetryMsMin,
    max: SYSTEM_LIMITS.removalRetryMsMax,
  });
  do await backoff.pause({ signal, ref: false });
  while (!signal.aborted && !(await attempt()));
}
