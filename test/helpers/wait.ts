import { setTimeout as sleep } from 'node:timers/promises';

const PAUSE_MS_MIN = 20;
const PAUSE_MS_MAX = 100;
/**
 * The share of the time waited so far that passes until the next check: most checks are requests,
 * and a long wait would otherwise take a third of a processor away from what it waits for.
 */
const PAUSE_PART = 0.2;

/**
 * Polls until the check returns something truthy, less often the longer it takes.
 * @throws Error naming what it waited for
 */
export async function waitFor<T>(
  what: string,
  check: () => Promise<T | undefined | false>,
  timeoutMs = 60_000,
): Promise<T> {
  const beganAt = performance.now();
  for (;;) {
    const value = await check();
    if (value !== undefined && value !== false) return value;
    const waitedMs = performance.now() - beganAt;
    if (waitedMs > timeoutMs) throw new Error(`waited ${timeoutMs} ms in vain for ${what}`);
    await sleep(Math.min(Math.max(waitedMs * PAUSE_PART, PAUSE_MS_MIN), PAUSE_MS_MAX));
  }
}
