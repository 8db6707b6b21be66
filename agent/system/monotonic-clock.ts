/** The wall clock counts as set only when it differs by more than reading two clocks may take. */
const STEP_MS_MIN = 1_000;

let epochMs = Number.NaN;

/**
 * The host's monotonic clock in milliseconds: since the host booted, without the time for which it was
 * suspended. Nobody can set it, and all processes of one boot agree on it. Timers run by it, too.
 */
export const monotonicNow = (): number => Number(process.hrtime.bigint() / 1_000_000n);

/**
 * What the wall clock, as it is set now, shows at a time of the monotonic clock.
 * @returns milliseconds since the epoch; the same for the same time until the wall clock is set
 */
export function toWallTime(monotonicMs: number): number {
  const measured = Date.now() - monotonicNow();
  if (!(Math.abs(measured - epochMs) < STEP_MS_MIN)) epochMs = measured;
  return epochMs + monotonicMs;
}
