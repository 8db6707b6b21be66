import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { loadavg } from 'node:os';
import { settledWithin } from '../shared/settled-within.ts';
import type { Finding } from './statistics.ts';

/** The result of one benchmark, in the file that a run of all writes. */
export interface BenchRun {
  readonly bench: string;
  readonly findings: readonly Finding[];
  /** Load of the machine over a minute before the benchmark and at its end. */
  readonly load: readonly [before: number, after: number];
  readonly tookS: number;
  /** Why it has not all of its findings. */
  readonly error?: string;
}

/** Times in milliseconds. */
export interface RunLimits {
  /** For each benchmark. */
  readonly eachMs: number;
  /** For all together: what has not begun then is left out. */
  readonly allMs: number;
  /** For a benchmark that is told to end, to stop what it has started. */
  readonly endMs: number;
}

/** `endMs` of the benchmarks in this directory. */
export const END_MS = 2 * 60_000;

const loadNow = (): number => loadavg()[0] ?? 0;

const minutes = (ms: number): string => (ms / 60_000).toFixed(1);

/** Kills a process and all that it started, which have its process group. */
function killGroup({ pid }: ChildProcess): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL');
  } catch {
    // None is left.
  }
}

/**
 * Runs one benchmark in a process of its own, so that not even its crash or hang concerns others.
 * @param args its name and its flags
 */
export async function runOne(
  program: string,
  args: readonly string[],
  { limitMs, endMs, signal }: { limitMs: number; endMs: number; signal: AbortSignal },
): Promise<Pick<BenchRun, 'findings' | 'error'>> {
  const findings: Finding[] = [];
  // A group of its own: Ctrl-C is passed on in order instead of reaching all of its processes.
  const child = fork(program, args, { detached: true });
  child.on('message', (finding) => findings.push(finding as Finding));
  const ended = once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>;
  const interrupted = new Promise<void>((resolve) => {
    signal.addEventListener('abort', () => resolve(), { once: true });
  });
  const isInTime = await settledWithin(Promise.race([ended, interrupted]), limitMs);
  if (isInTime && !signal.aborted) {
    const [code, killedBy] = await ended;
    killGroup(child);
    return code === 0 ? { findings } : { findings, error: `ended with ${code ?? killedBy}` };
  }
  child.kill('SIGTERM');
  const why = signal.aborted ? 'interrupted' : `not done after ${Math.round(limitMs / 1000)} s`;
  const isEnded = await settledWithin(ended, endMs);
  killGroup(child);
  return { findings, error: isEnded ? why : `${why}, and killed with all that it had started` };
}

/**
 * Runs benchmarks one after the other, each with its own default lengths. One that fails, crashes
 * or hangs does not keep the others away.
 * @param program takes the name of a benchmark, sends its findings, and ends in order at SIGTERM
 * @param file where everything is written as JSON, anew after each benchmark
 * @param signal ends the one that runs, and leaves out the rest
 */
export async function runAll(
  program: string,
  names: readonly string[],
  { limits, file, signal }: { limits: RunLimits; file: string | undefined; signal: AbortSignal },
): Promise<readonly BenchRun[]> {
  const beganAt = performance.now();
  const runs: BenchRun[] = [];
  const longestMs = Math.min(limits.allMs, names.length * limits.eachMs) + limits.endMs;
  process.stdout.write(`${names.length} benchmarks, ${minutes(longestMs)} minutes at most\n\n`);
  for (const bench of names) {
    const before = loadNow();
    const oneBeganAt = performance.now();
    const limitMs = Math.min(limits.eachMs, limits.allMs - (oneBeganAt - beganAt));
    const isLeftOut = signal.aborted || limitMs <= 0;
    if (!isLeftOut) process.stdout.write(`== ${bench} (load ${before.toFixed(1)})\n`);
    const result = isLeftOut
      ? { findings: [], error: signal.aborted ? 'interrupted' : 'no time was left' }
      : await runOne(program, [bench], { limitMs, endMs: limits.endMs, signal });
    const tookS = Math.round((performance.now() - oneBeganAt) / 1000);
    runs.push({ bench, ...result, load: [before, loadNow()], tookS });
    // After each one, so that a run that is interrupted leaves what it found.
    if (file !== undefined) await writeFile(file, `${JSON.stringify(runs, undefined, 2)}\n`);
  }
  printSummary(runs, performance.now() - beganAt);
  return runs;
}

function printSummary(runs: readonly BenchRun[], tookMs: number): void {
  const lines = runs.map(({ bench, tookS, error }) => {
    const end = error === undefined ? '' : `  FAILED: ${error}`;
    return `  ${bench.padEnd(20)}${String(tookS).padStart(5)} s${end}\n`;
  });
  process.stdout.write(`all took ${minutes(tookMs)} minutes\n${lines.join('')}`);
}
