import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import { type BenchRun, type RunLimits, runAll, runOne } from '../../bench/run-all.ts';
import { waitFor } from '../helpers/wait.ts';

const program = new URL('../fixtures/bench-program.ts', import.meta.url).pathname;
const minute = 60_000;
/** Enough for the program to start on a busy machine. */
const SOON_MS = 8000;
const patient: RunLimits = { eachMs: minute, allMs: 10 * minute, endMs: minute };

interface Run {
  readonly names: readonly string[];
  readonly limits?: Partial<RunLimits>;
  readonly signal?: AbortSignal;
}

/** Runs benchmarks. @returns what the file says in the end */
async function runToFile({ names, limits, signal }: Run): Promise<readonly BenchRun[]> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-run-all-'));
  const file = join(directory, 'all.json');
  try {
    const all = { ...patient, ...limits };
    await runAll(program, names, {
      limits: all,
      file,
      signal: signal ?? new AbortController().signal,
    });
    return JSON.parse(await readFile(file, 'utf8')) as BenchRun[];
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

const errors = (runs: readonly BenchRun[]) =>
  runs.map(({ bench, error = 'none' }) => [bench, error]);

test('A benchmark that fails or crashes is named with what it found, and the others run', async (t) => {
  const runs = await runToFile({ names: ['failing', 'crashing', 'good'] });
  t.deepEqual(errors(runs), [
    ['failing', 'ended with 1'],
    ['crashing', 'ended with SIGKILL'],
    ['good', 'none'],
  ]);
  t.deepEqual(
    runs.map(({ findings }) => findings.map(({ title }) => title)),
    [['failing'], ['crashing'], ['good']],
  );
});

test('A benchmark that reaches its limit is told to end, and the next one runs', async (t) => {
  const runs = await runToFile({ names: ['slow', 'good'], limits: { eachMs: SOON_MS } });
  t.deepEqual(errors(runs), [
    ['slow', 'not done after 8 s'],
    ['good', 'none'],
  ]);
});

test('A benchmark that does not end is killed with what it had started', async (t) => {
  const [run] = await runToFile({ names: ['stuck'], limits: { eachMs: SOON_MS, endMs: 100 } });
  t.regex(run?.error ?? '', /killed with all that it had started$/u);
  const { pid } = run?.findings.at(1)?.rows ?? {};
  t.is(typeof pid, 'number');
  await waitFor('its child to be gone', () => Promise.resolve(!isAlive(Number(pid))));
});

test('What has not begun when the time of all is over is left out', async (t) => {
  const runs = await runToFile({ names: ['slow', 'good'], limits: { allMs: SOON_MS } });
  t.deepEqual(errors(runs), [
    ['slow', 'not done after 8 s'],
    ['good', 'no time was left'],
  ]);
});

test('An interruption ends the benchmark that runs and leaves out the rest', async (t) => {
  const interruption = new AbortController();
  setTimeout(() => interruption.abort(), 500);
  const runs = await runToFile({ names: ['slow', 'good'], signal: interruption.signal });
  t.deepEqual(errors(runs), [
    ['slow', 'interrupted'],
    ['good', 'interrupted'],
  ]);
});

test('An error that nothing handles ends a benchmark', async (t) => {
  const failing = new URL('../fixtures/bench-failing.ts', import.meta.url).pathname;
  const signal = new AbortController().signal;
  const { error } = await runOne(failing, [], { limitMs: minute, endMs: minute, signal });
  t.is(error, 'ended with 1');
});

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
