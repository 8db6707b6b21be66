import { runInBackground } from '../shared/background.ts';
import { Stack } from '../test/helpers/stack.ts';

/** How long a benchmark that is to end may take for what it has started. */
const ENDS_WITHIN_MS = 100_000;

const controller = new AbortController();
/** Aborted when the benchmark of this process is to end. */
export const ending = controller.signal;

/** Stops the stacks of this process: its benchmark then fails, and stops what else it started. */
function end(why: Error): void {
  if (ending.aborted) return;
  controller.abort(why);
  setTimeout(() => process.exit(1), ENDS_WITHIN_MS).unref();
  runInBackground('bench.stop', () => Stack.stopAll());
}

/** Prints an error, and first the one that led to it. */
function printError(error: unknown): void {
  if (error instanceof SuppressedError) {
    printError(error.suppressed);
    printError(error.error);
  } else {
    console.error(error);
  }
}

/**
 * Runs the benchmark of this process to its end, to the first error that nothing handles, or to a
 * signal; then ends the process.
 */
export async function runToEnd(work: () => Promise<void>): Promise<never> {
  let isTold = false;
  const beTold = (): void => {
    isTold = true;
    end(new Error('told to end'));
  };
  // The other end of the channel is what watches this process.
  for (const name of ['SIGINT', 'SIGTERM', 'disconnect']) process.on(name, beTold);
  process.on('uncaughtException', end);
  let code = 0;
  try {
    await work();
    ending.throwIfAborted();
  } catch (error) {
    code = 1;
    if (!isTold) printError(ending.reason ?? error);
  }
  await Stack.stopAll();
  process.exit(code);
}
