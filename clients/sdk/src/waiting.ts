import type { CallOptions } from './http.ts';
import { sleep } from './timing.ts';
import { withinTime } from './within-time.ts';

const POLL_FIRST_MS = 100;
const POLL_MAX_MS = 2_000;

/** How long to wait, and a signal that ends the wait. */
export interface WaitOptions {
  readonly signal?: AbortSignal | undefined;
  /** In milliseconds. Default 5 minutes. */
  readonly timeoutMs?: number | undefined;
}

const WAIT_MS = 300_000;

/** @internal Polls until there is a result. @throws CallTimeoutError */
export function poll<T>(
  { signal, timeoutMs = WAIT_MS }: WaitOptions,
  look: (options: CallOptions) => Promise<T | undefined>,
): Promise<T> {
  return withinTime(signal, timeoutMs, async (ended) => {
    for (let pauseMs = POLL_FIRST_MS; ; pauseMs = Math.min(POLL_MAX_MS, pauseMs * 1.5)) {
      const found = await look({ signal: ended });
      if (found !== undefined) return found;
      await sleep(pauseMs, ended);
    }
  });
}
