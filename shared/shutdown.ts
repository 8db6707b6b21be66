import { runInBackground } from './background.ts';
import { toError } from './errors.ts';
import type { Logger } from './log.ts';
import { closeTracer } from './spans.ts';

/** A step of a shutdown. A promise that it returns is awaited. */
type Step = (signal: StopSignal) => unknown;

/** SIGPWR (signal(7)) means that the host is going down, so nothing may be left running on it. */
type StopSignal = 'SIGTERM' | 'SIGINT' | 'SIGPWR';

/**
 * Runs the steps in order on SIGTERM, SIGINT or SIGPWR, then ends the process. A step that fails is
 * logged and the next one runs; at the deadline the process ends in any case.
 */
export function onShutdown(log: Logger, deadlineMs: number, steps: readonly Step[]): void {
  let begun = false;
  const shutdown = async (signal: StopSignal): Promise<void> => {
    if (begun) return;
    begun = true;
    log.info({ signal }, 'process:stopping');
    setTimeout(() => {
      log.error('process:stopOverdue');
      log.flush(() => process.exit(1));
    }, deadlineMs).unref();
    for (const step of [...steps, closeTracer]) {
      try {
        await step(signal);
      } catch (error) {
        log.error({ err: toError(error) }, 'process:stopStepFailed');
      }
    }
    log.info('process:stopped');
    log.flush(() => process.exit(0));
  };
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGPWR'] as const) {
    // `on`, not `once`: a second signal would otherwise end the process half-way.
    process.on(signal, () => runInBackground('process.stop', () => shutdown(signal)));
  }
}
