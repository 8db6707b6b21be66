import { toError } from '../../../shared/errors.ts';
import { BootError, type Machine } from '../driver.ts';

/** Rejects with the signal's reason. */
function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const fail = (): void => reject(toError(signal.reason));
    if (signal.aborted) fail();
    else signal.addEventListener('abort', fail, { once: true });
  });
}

/**
 * Waits for a machine to come up. When that fails, the machine is no longer watched; it is to be
 * killed then.
 * @throws BootError `boot_timeout` after the host's limit; what `bringUp` throws; the signal's
 *   reason
 */
export async function untilRunning(
  { bootTimeoutMs }: { readonly bootTimeoutMs: number },
  machine: Machine,
  signal: AbortSignal,
  bringUp: (limit: AbortSignal) => Promise<void>,
): Promise<void> {
  const over = new AbortController();
  const late = AbortSignal.timeout(bootTimeoutMs);
  const limit = AbortSignal.any([signal, late, over.signal]);
  const endedEarly = machine.ended.then((end) => {
    throw new BootError('boot_failed', `${end.reason}: ${end.message}`);
  });
  try {
    await Promise.race([bringUp(limit), endedEarly, aborted(limit)]);
    signal.throwIfAborted();
  } catch (error) {
    machine.detach();
    if (!late.aborted || signal.aborted) throw error;
    const message = `the guest was not ready within ${bootTimeoutMs} ms`;
    throw new BootError('boot_timeout', message, { cause: error });
  } finally {
    over.abort();
  }
}
