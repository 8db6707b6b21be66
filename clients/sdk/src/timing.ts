/** @internal Resolves after the time, or rejects with the signal's reason as soon as it is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted === true) return reject(reasonOf(signal));
    const aborted = (): void => {
      clearTimeout(timer);
      reject(reasonOf(signal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', aborted);
      resolve();
    }, ms);
    signal?.addEventListener('abort', aborted, { once: true });
  });
}

/** @internal What an aborted call rejects with. */
export const reasonOf = (signal: AbortSignal | undefined): Error =>
  signal?.reason instanceof Error ? signal.reason : new Error(String(signal?.reason));

/**
 * @internal The wait before attempt `n` (from 0) is repeated: it doubles, and a random half of it
 * keeps clients that failed together apart.
 */
export function backoffMs(n: number, firstMs: number, maxMs: number): number {
  const wholeMs = Math.min(maxMs, firstMs * 2 ** n);
  return wholeMs / 2 + (Math.random() * wholeMs) / 2;
}

/** @internal The signals that are there, as one. */
export function anySignal(...signals: (AbortSignal | undefined)[]): AbortSignal {
  return AbortSignal.any(signals.filter((signal) => signal !== undefined));
}
