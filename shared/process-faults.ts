import { reportBackgroundFailures } from './background.ts';
import { toError } from './errors.ts';
import type { Logger } from './log.ts';
import { Counter, type Registry } from './metrics.ts';

/** How long the last event may take to reach the log. */
const LAST_WORDS_MS = 1_000;

/**
 * Handles every failure that nothing else handled (docs/decisions/0026). Failed background tasks
 * and unhandled rejections are logged and counted, and the process continues, because each belongs
 * to one request or task. An uncaught exception may have stopped any code half-way, so the process
 * logs it and ends; its supervisor starts it again.
 */
export function ownProcessFaults(log: Logger, registry: Registry): void {
  const failures = new Counter({
    name: 'berth_background_failures_total',
    help: 'Failures of tasks that nobody waits for; the task is tried again or given up',
    labelNames: ['task'] as const,
    registers: [registry],
  });
  const unhandled = new Counter({
    name: 'berth_unhandled_rejections_total',
    help: 'Rejections that no code handled; each one is a fault of the program',
    registers: [registry],
  });
  reportBackgroundFailures((task, error) => {
    failures.inc({ task });
    log.warn({ task, err: error }, 'background:failed');
  });
  process.on('unhandledRejection', (reason) => {
    unhandled.inc();
    log.error({ err: toError(reason) }, 'process:unhandledRejection');
  });
  process.on('uncaughtException', (error, origin) => {
    endProcess(log, { err: error, origin }, 'process:uncaughtException');
  });
}

/** Ends the process at once, with an event that says why; its supervisor starts it again. */
export function endProcess(
  log: Logger,
  fields: { readonly err: Error; readonly origin?: string },
  event: string,
): void {
  log.fatal(fields, event);
  setTimeout(() => process.exit(1), LAST_WORDS_MS).unref();
  log.flush(() => process.exit(1));
}
