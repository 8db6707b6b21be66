import { setTimeout as sleep } from 'node:timers/promises';
import { LIMITS } from '../../shared/limits.ts';

/**
 * Retries a failed removal with exponential backoff until it succeeds.
 * @param attempt returns whether it has succeeded; must not throw
 * @param signal ends the attempts when it is aborted
 */
export async function repeatUntilDone(
  attempt: () => Promise<boolean>,
  signal: AbortSignal,
): Promise<void> {
  const { removalRetryMsMin: min, removalRetryMsMax: max } = LIMITS;
  for (let pauseMs: number = min; ; pauseMs = Math.min(2 * pauseMs, max)) {
    await sleep(pauseMs, undefined, { signal, ref: false }).catch(() => undefined);
    if (signal.aborted || (await attempt())) return;
  }
}
