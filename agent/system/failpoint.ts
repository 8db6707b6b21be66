import { appendFileSync, readFileSync } from 'node:fs';

/*
 * Fault injection. With FAILPOINTS=<file> the agent writes every failpoint that it reaches to
 * <file>.reached, and kills itself with SIGKILL at the one whose name the file holds: tests see what a
 * crash there leaves (test/system/sandbox-crash.test.ts). Otherwise only the action is done.
 */
const failpoints = process.env['FAILPOINTS'];

/** Settles when whoever reached the point may go on; an agent that is to crash there never does. */
type Intercept = (point: string) => Promise<void>;

let intercept: Intercept | undefined;

/** For tests of agents within one process: they decide at every point what comes next. */
export function interceptFailpoints(by: Intercept | undefined): void {
  intercept = by;
}

/**
 * Does something where a crash matters: a write to the journal, or a change of the host. The name says
 * what is done; before and after it lies a point at which a test can kill the agent.
 */
export async function failpoint<T>(name: string, action: () => Promise<T>): Promise<T> {
  if (intercept !== undefined) return intercepted(intercept, name, action);
  if (failpoints === undefined) return action();
  reach(failpoints, `before ${name}`);
  const result = await action();
  reach(failpoints, `after ${name}`);
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
    return; // Nothing is armed.
  }
  if (armed === point) process.kill(process.pid, 'SIGKILL');
}
