import { toError } from './errors.ts';

/** Is told of each failure of a task that nobody waits for. */
export type FailureReport = (task: string, error: Error) => void;

let report: FailureReport = (task, error) => {
  process.stderr.write(`${task}: ${error.stack ?? error.message}\n`);
};

/** Sets who is told, for the whole process; until then failures go to stderr. */
export function reportBackgroundFailures(to: FailureReport): void {
  report = to;
}

/**
 * Starts work that nobody waits for. A failure, thrown or rejected, is reported under the task's
 * name and goes no further: no work of this kind can end the process. Never throws.
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
 * Does work now and again after every pause, until stopped. A failure is reported and the next turn
 * tries again; a turn that takes long is never overtaken by the next one.
 * @returns stops it; a turn under way ends by itself
 */
export function repeatInBackground(task: string, everyMs: number, work: () => unknown): () => void {
  let isAtWork = false;
  const turn = (): void => {
    if (isAtWork) return;
    isAtWork = true;
    runInBackground(task, async () => {
      try {
        await work();
      } finally {
        isAtWork = false;
      }
    });
  };
  const timer = setInterval(turn, everyMs);
  turn();
  return () => clearInterval(timer);
}
