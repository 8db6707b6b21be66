import { CallTimeoutError } from './errors.ts';
import type { CallOptions } from './http.ts';
import { Deadline, LinkedSignal, reasonOf, sleep } from './timing.ts';

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
export async function poll<T>(
  { signal, timeoutMs = WAIT_MS }: WaitOptions,
  look: (options: CallOptions) => Promise<T | undefined>,
): Promise<T> {
  const deadline = new Deadline(timeoutMs);
  const linked = new LinkedSignal(signal, deadline.signal);
  const ended = linked.signal;
  try {
    for (let pauseMs = POLL_FIRST_MS; ; pauseMs = Math.min(POLL_MAX_MS, pauseMs * 1.5)) {
      const found = await look({ signal: ended });
      if (found !== undefined) return found;
      await sleep(pauseMs, ended);
    }
  } catch (error) {
    if (signal?.aborted === true) throw reasonOf(signal);
    if (deadline.isOver) throw new CallTimeoutError(timeoutMs);
    throw error;
  } finally {
    deadline.clear();
    linked.release();
  }
}
