import { setTimeout as sleep } from 'node:timers/promises';
import type { ClaimResult } from '../../shared/directory/named-records.ts';
import { AppError } from '../../shared/errors.ts';
import { REGION_LIMITS } from './limits.ts';

const POLL_MS_MIN = 25;
const POLL_MS_MAX = 250;

/**
 * Claims a name. While another call has claimed it, nobody knows whether there will be one of that
 * name: waits for a moment, in which nearly every claim is confirmed or released.
 * @throws AppError `unavailable` when the other call takes longer
 */
export async function claimName(
  name: string,
  claim: () => Promise<ClaimResult>,
): Promise<Exclude<ClaimResult, 'name_claimed'>> {
  const until = performance.now() + REGION_LIMITS.nameClaimWaitMs;
  for (let waitMs = POLL_MS_MIN; ; waitMs = Math.min(waitMs * 2, POLL_MS_MAX)) {
    const result = await claim();
    if (result !== 'name_claimed') return result;
    if (performance.now() > until) {
      throw new AppError('unavailable', `another request is creating ${name}; try again`);
    }
    await sleep(waitMs);
  }
}
