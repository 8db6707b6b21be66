import { appendFileSync, readFileSync } from 'node:fs';
import { failpointsFile } from './environment.ts';

/*
 * Fault injection. With FAILPOINTS=<file> the agent appends the name of every failpoint that it
 * reaches to <file>.reached, and kills itself with SIGKILL at the failpoint that <file> names, so
 * that tests see what a crash there leaves (test/system/sandbox-crash.test.ts). Otherwise only the
 * action runs.
 */
/**
 * Resolves when the code at that point may continue; never, for an agent that shall crash there.
 */
type Intercept = (point: string) => Promise<void>;

let intercept: Intercept | undefined;

/** For tests that run agents within their own process: `by` is awaited at every failpoint. */
export function interceptFailpoints(by: Intercept | undefined): void {
  intercept = by;
}

/**
 * Runs an action around which a crash matters: a write to the journal, or a change to the host. A
 * test can kill the agent right before or after it.
 * @param name says what the action does; the failpoints are `before <name>` and `after <name>`
 */
export async function failpoint<T>(name: string, action: () => Promise<T>): Promise<T> {
  if (intercept !== undefined) return intercepted(intercept, name, action);
  if (failpointsFile === undefined) return action();
  reach(failpointsFile, `before ${name}`);
  const result = await action();
  reach(failpointsFile, `after ${name}`);
  return result;
}

async function intercepted<T>(by: Intercept, name: string, action: () => Promise<T>): Promise<T> {
  await by(`before ${name}`);
  const result = await action();
  await by(`after ${name}`);
  return result;
}

function reach(file: string, point: string): void {
  appendFileSync(`${file}.reached`, `${point}\n`);
  let armed = '';
  try {
    armed = readFileSync(file, 'utf8').trim();
  } catch {
    return; // No failpoint is armed.
  }
  if (armed === point) process.kill(process.pid, 'SIGKILL');
}
