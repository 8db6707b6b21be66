/** Smaller differences count as the time between reading the two clocks, not as a step. */
const STEP_MS_MIN = 1_000;

let epochMs = Number.NaN;

/**
 * The host's monotonic clock in milliseconds since its boot, without the time for which it was
 * suspended. It cannot be set, and is the same for all processes of one boot. Timers use it, too.
 */
export const monotonicNow = (): number => Number(process.hrtime.bigint() / 1_000_000n);

/**
 * Converts a time of the monotonic clock to the wall clock as it is set now.
 * @returns milliseconds since the epoch; stable for the same input until the wall clock is set
 */
export function toWallTime(monotonicMs: number): number {
  const measured = Date.now() - monotonicNow();
  if (!(Math.abs(measured - epochMs) < STEP_MS_MIN)) epochMs = measured;
  return epochMs + monotonicMs;
}
