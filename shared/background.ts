import { toError } from './errors.ts';

/** Receives each failure of a background task. */
export type FailureReport = (task: string, error: Error) => void;

let report: FailureReport = (task, error) => {
  process.stderr.write(`${task}: ${error.stack ?? error.message}\n`);
};

/** Sets the receiver of failures for the whole process; before that they go to stderr. */
export function reportBackgroundFailures(to: FailureReport): void {
  report = to;
}

/**
 * Starts work that nobody awaits. Never throws: a failure, thrown or rejected, is reported under
 * the task's name and goes no further, so background work cannot end the process.
 * @param task names the work in the log event and the metric: `<noun>.<verb>`, from a fixed set
 */
export function runInBackground(task: string, work: () => unknown): void {
  const settle = async (): Promise<void> => {
    try {
      await work();
    } catch (thrown) {
      report(task, toError(thrown));
    }
  };
  settle().catch(() => undefined); // Only a report that throws gets here.
}

/**
 * Work whose runs never overlap: one that is begun while the previous one is still at work is
 * skipped. A failure is reported.
 * @returns a function that begins a run
 */
export function withoutOverlap(task: string, work: () => unknown): () => void {
  let isRunning = false;
  return () => {
    if (isRunning) return;
    isRunning = true;
    runInBackground(task, async () => {
      try {
        await work();
      } finally {
        isRunning = false;
      }
    });
  };
}

/**
 * Does the work now and then every `everyMs` milliseconds until stopped, {@link withoutOverlap}.
 * The run after one that has failed tries again.
 * @returns a function that stops the repetition; a run under way finishes
 */
export function repeatInBackground(task: string, everyMs: number, work: () => unknown): () => void {
  const run = withoutOverlap(task, work);
  const timer = setInterval(run, everyMs);
  run();
  return () => clearInterval(timer);
}

/**
 * Like {@link repeatInBackground}, for work that must have finished before what it uses is closed.
 * @returns a function that stops the repetition, and settles when a run under way has finished
 */
export function repeatUntilStopped(
  task: string,
  everyMs: number,
  work: () => unknown,
): () => Promise<void> {
  let ended: Promise<void> = Promise.resolve();
  const stop = repeatInBackground(task, everyMs, async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    ended = promise;
    try {
      await work();
    } finally {
      resolve();
    }
  });
  return () => {
    stop();
    return ended;
  };
}
