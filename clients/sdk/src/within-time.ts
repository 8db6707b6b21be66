import { CallTimeoutError } from './errors.ts';
import { Deadline, LinkedSignal, reasonOf } from './timing.ts';

/**
 * @internal Does work that is given up when the caller's signal is aborted or the time is over: its
 * own signal is aborted then.
 * @throws the reason of the caller's signal; CallTimeoutError
 */
export async function withinTime<T>(
  signal: AbortSignal | undefined,
  timeoutMs: number,
  work: (ended: AbortSignal) => Promise<T>,
): Promise<T> {
  const deadline = new Deadline(timeoutMs);
  const linked = new LinkedSignal(signal, deadline.signal);
  try {
    return await work(linked.signal);
  } catch (error) {
    if (signal?.aborted === true) throw reasonOf(signal);
    if (deadline.isOver) throw new CallTimeoutError(timeoutMs);
    throw error;
  } finally {
    deadline.clear();
    linked.release();
  }
}
