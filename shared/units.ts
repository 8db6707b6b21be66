/* Multiples of bytes and of milliseconds. */
export const KiB = 1024;
export const MiB = 1024 * KiB;
export const GiB = 1024 * MiB;
export const TiB = 1024 * GiB;

export const MINUTE_MS = 60_000;
export const HOUR_MS = 60 * MINUTE_MS;
export const DAY_MS = 24 * HOUR_MS;

/** A size in words, in the largest unit that it is a multiple of: `16 MiB`, `1000 bytes`. */
export function sizeInWords(bytes: number): string {
  const units = { TiB, GiB, MiB, KiB };
  const [name, unit] = Object.entries(units).find(([, size]) => bytes % size === 0) ?? ['bytes', 1];
  return `${bytes / unit} ${name}`;
}

/**
 * The nearest time that `setTimeout` can wait for: it fires at once for one beyond these bounds.
 */
export const timerMs = (ms: number): number => Math.min(Math.max(ms, 0), 2 ** 31 - 1);
