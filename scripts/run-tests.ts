/**
 * Runs `npm test` and prints a last line with the numbers of tests that passed and failed.
 * Arguments are passed to AVA.
 *
 * A run of all tests gives the few files that failed a second chance, by themselves: on a busy
 * machine one of some thousand tests over real virtual machines may run into a deadline of the
 * product. Such files are named at the end. What fails twice, or in many files, has failed.
 */
import { spawn } from 'node:child_process';
import { globSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { TestReport } from './test-report.ts';

/** The most files that are run again. More have one cause, which a second run only hides. */
const FILES_AGAIN_MAX = 12;
const DEADLINE_MS = (process.env['BERTH_TEST_FULL'] === '1' ? 180 : 75) * 60_000;
/** How long the processes of a run may take to end when they are told to. */
const ENDS_WITHIN_MS = 10_000;
/** How long the last lines may take to arrive. */
const LINES_WITHIN_MS = 2000;
const WITH_SHARED_MOUNTS = join(import.meta.dirname, 'with-shared-mounts');

interface Run {
  readonly code: number;
  readonly report: TestReport;
}

const stop = new AbortController();
const stopped = AbortSignal.any([stop.signal, AbortSignal.timeout(DEADLINE_MS)]);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => stop.abort());
}

/**
 * Runs AVA on the files (all of them without any), and prints what it prints. Fails, too, when
 * something stays mounted.
 */
async function run(args: readonly string[]): Promise<Run> {
  const report = new TestReport(globSync('test/**/*.test.ts'));
  const child = spawn(WITH_SHARED_MOUNTS, ['npm', 'test', '--', ...args], {
    stdio: ['inherit', 'pipe', 'inherit'],
    detached: true, // A group of its own, which can be ended as a whole.
  });
  const lines = createInterface({ input: child.stdout });
  lines.on('line', (line) => {
    console.log(line);
    report.read(line);
  });
  const exited = new Promise<number>((resolve) => {
    child.once('exit', (code) => resolve(code ?? 1));
  });
  const end = (): void => endGroup(child.pid);
  stopped.addEventListener('abort', end);
  const code = await exited;
  stopped.removeEventListener('abort', end);
  // Processes that a test left behind may keep the pipe open: they are not waited for.
  const closed = new Promise((resolve) => lines.once('close', resolve));
  await Promise.race([closed, sleep(LINES_WITHIN_MS)]);
  child.stdout.destroy();
  return { code, report };
}

/** Ends a group of processes that may be stopping already. */
function endGroup(pid: number | undefined): void {
  if (pid === undefined) return;
  signalGroup(pid, 'SIGTERM');
  setTimeout(() => signalGroup(pid, 'SIGKILL'), ENDS_WITHIN_MS).unref();
}

function signalGroup(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-pid, signal);
  } catch {
    // The process has ended.
  }
}

const args = process.argv.slice(2);
const first = await run(args);
let { code } = first;
let { passed, failed } = first.report;
const { failedFiles, missedFiles } = first.report;
const again = [...failedFiles, ...missedFiles];
const isWorthAgain =
  args.length === 0 && failedFiles.length <= FILES_AGAIN_MAX && !failedFiles.includes('');
if (code !== 0 && again.length > 0 && isWorthAgain && !stopped.aborted) {
  console.log(`\nRunning again: ${again.join(', ')}\n`);
  const second = await run(missedFiles.length === 0 ? ['--concurrency=1', ...again] : again);
  ({ code } = second);
  ({ failed } = second.report);
  passed += second.report.passed - first.report.passedIn(again);
  if (code === 0) console.log(`Passed only the second time: ${failedFiles.join(', ')}`);
}
if (stopped.aborted) console.log(`Stopped. A run may take ${DEADLINE_MS / 60_000} minutes.`);
// A time-out or a crash of AVA itself counts as a failure, although no test is named.
if (code !== 0) failed = Math.max(failed, 1);
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = code;
