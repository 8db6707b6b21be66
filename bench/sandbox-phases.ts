import assert from 'node:assert';
import { type StartTimes, startPhases } from '../agent/sandboxes/lifecycle/start-clock.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { logEvents, type SandboxBench } from './sandbox-bench.ts';
import { printRows } from './statistics.ts';

const TITLES = {
  placed: 'capacity, slot, journal',
  queued: 'waiting for its turn',
  restored: 'restored or booted',
  ready: 'guest ready, journalled',
} as const;

/** A start as its caller saw it. */
interface SeenStart {
  readonly id: string;
  readonly runningMs: number;
  readonly outputMs: number;
}

/** Milliseconds by the name of the phase. */
type Phases = Readonly<Record<string, number>>;

const phasesWithin = (times: StartTimes): Phases =>
  Object.fromEntries(startPhases.map((phase) => [TITLES[phase], times[phase] ?? Number.NaN]));

function phasesOf({ runningMs, outputMs }: SeenStart, jobMs: number, times: StartTimes): Phases {
  const within = phasesWithin(times);
  const known = Object.values(within).reduce((sum, ms) => sum + ms, jobMs);
  return {
    'job in its queue': jobMs,
    ...within,
    'HTTP, control, answer': runningMs - known,
    'first command': outputMs - runningMs,
  };
}

/** The phases of these starts that the agent logged, completed with what their callers measured. */
export async function readPhases(
  bench: SandboxBench,
  starts: readonly SeenStart[],
): Promise<Phases[]> {
  const look = async (): Promise<Phases[] | false> => {
    const jobs = await logEvents(bench, 'job:ended');
    const started = await logEvents(bench, 'sandbox:started');
    const found = starts.flatMap((start) => {
      const job = jobs.find(
        ({ sandboxId, kind }) => sandboxId === start.id && kind === 'sandbox.create',
      );
      const { timesMs, origin } = started.find(({ sandboxId }) => sandboxId === start.id) ?? {};
      if (job === undefined || timesMs === undefined) return [];
      assert.equal(origin === 'boot', bench.isCold);
      return [phasesOf(start, Number(job['waitedMs']), timesMs as StartTimes)];
    });
    return found.length === starts.length && found;
  };
  // Its lines are written in batches.
  return waitFor('all starts in the log of the agent', look);
}

/** The phases of all resumes that the agent logged. */
export async function readResumes(bench: SandboxBench): Promise<Phases[]> {
  const started = await logEvents(bench, 'sandbox:started');
  return started
    .filter(({ origin }) => origin === 'checkpoint')
    .map(({ timesMs }) => phasesWithin(timesMs as StartTimes));
}

export function printPhases(title: string, starts: readonly Phases[]): void {
  const names = Object.keys(starts[0] ?? {});
  const rows = names.map((name) => ({
    name,
    samples: starts.map((phases) => phases[name] ?? Number.NaN),
  }));
  printRows(title, rows, 'ms');
}
