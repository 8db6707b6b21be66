/* Multiples of bytes and of milliseconds. */
export const KiB = 1024;
export const MiB = 1024 * KiB;
export const GiB = 1024 * MiB;
export const TiB = 1024 * GiB;

export const MINUTE_MS = 60_000;
export const HOUR_MS = 60 * MINUTE_MS;
export const DAY_MS = 24 * HOUR_MS;

/**
 * The nearest time that `setTimeout` can wait for: it fires at once for one beyond these bounds.
 */
export const timerMs = (ms: number): number => Math.min(Math.max(ms, 0), 2 ** 31 - 1);
