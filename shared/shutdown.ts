import { runInBackground } from './background.ts';
import { toError } from './errors.ts';
import type { Logger } from './log.ts';

/** Its promise is awaited when it returns one. */
type Step = (signal: StopSignal) => unknown;

/** SIGPWR (signal(7)): the host is about to go down, so nothing may be left running on it. */
type StopSignal = 'SIGTERM' | 'SIGINT' | 'SIGPWR';

/**
 * Runs the steps in order on SIGTERM, SIGINT or SIGPWR, then ends the process. A step that fails does not
 * keep the others from running; past the deadline the process ends all the same.
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
    for (const step of steps) {
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
    // Not `once`: a second signal would end the process half-way.
    process.on(signal, () => runInBackground('process.stop', () => shutdown(signal)));
  }
}
