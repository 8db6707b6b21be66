import { appendFileSync, readFileSync } from 'node:fs';

/*
 * Fault injection. With CRASH_POINTS=<file> the agent writes every point that it reaches to
 * <file>.reached, and ends itself with SIGKILL at the point whose name the file holds: tests see what
 * a crash there leaves (test/system/sandbox-crash.test.ts). Otherwise a step is just its action.
 */
const crashPoints = process.env['CRASH_POINTS'];

/** Settles when whoever reached the point may go on; an agent that is to crash there never does. */
type Intercept = (point: string) => Promise<void>;

let intercept: Intercept | undefined;

/** For tests of agents within one process: they decide at every point what comes next. */
export function interceptFailpoints(by: Intercept | undefined): void {
  intercept = by;
}

/**
 * A write to the journal or something done to the host: where a crash matters. Its name says what is
 * done; before and after it lie two crash points.
 */
export async function step<T>(name: string, action: () => Promise<T>): Promise<T> {
  if (intercept !== undefined) return intercepted(intercept, name, action);
  if (crashPoints === undefined) return action();
  reach(crashPoints, `before ${name}`);
  const result = await action();
  reach(crashPoints, `after ${name}`);
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
