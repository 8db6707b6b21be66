import { type ChildProcess, spawn, type SpawnOptions } from 'node:child_process';
import { once } from 'node:events';
import { runInBackground } from '../../shared/background.ts';
import { leashPath } from '../native/native.ts';
import { started } from './started.ts';

const OUTPUT_BYTES_MAX = 64 * 1024;
const TIMEOUT_MS = 30_000;

/** An external program that ended with an error. The message ends with the last of its output. */
export class ProgramError extends Error {
  /** Undefined when a signal ended it. */
  readonly exitCode: number | undefined;
  /** By SIGKILL before its time limit: only the kernel does that, for lack of memory. */
  readonly wasKilled: boolean;

  constructor(program: string, ending: number | string, output: string) {
    super(`${program} ended with ${ending}: ${output.trim().slice(-2000)}`);
    this.name = 'ProgramError';
    this.exitCode = typeof ending === 'number' ? ending : undefined;
    this.wasKilled = ending === 'SIGKILL';
  }
}

/**
 * An external program that did not end in time and was killed. One that hangs in the kernel ends
 * only when the kernel lets go of it.
 */
export class ProgramTimeoutError extends Error {
  /** Settles when the program has really ended. */
  readonly ended: Promise<unknown>;

  constructor(program: string, timeoutMs: number, ended: Promise<unknown>) {
    super(`${program} did not end within ${timeoutMs} ms and was killed`);
    this.name = 'ProgramTimeoutError';
    this.ended = ended;
  }
}

interface Leash {
  /** Killed programs that have not ended yet: each hangs in the kernel. */
  readonly overdue: Set<ChildProcess>;
  /** The cgroup.procs of the control group for programs; undefined: that of this process. */
  group: string | undefined;
}

/** The agent has a single leash, since programs are leashed to its process id. */
const leash: Leash = { overdue: new Set(), group: undefined };

/** Makes the programs started from now on join a control group. @param group its cgroup.procs */
export function keepProgramsIn(group: string): void {
  leash.group = group;
}

/** How many programs were killed but have not ended, because they hang in the kernel. */
export const overduePrograms = (): number => leash.overdue.size;

/**
 * Starts a program that ends when this agent ends, for whatever reason; the host's next agent waits
 * for its end (leash.c). Every program is started here, except those meant to outlive the agent.
 * @param lock a file that the program holds locked while it runs
 * @param groups cgroup.procs files of further control groups that the program joins
 */
export function spawnLeashed(
  program: string,
  args: readonly string[],
  {
    lock,
    groups = [],
    ...options
  }: SpawnOptions & { lock?: string | undefined; groups?: readonly string[] } = {},
): ChildProcess {
  const leashArgs = [
    ...leashArguments(),
    ...groups.flatMap((group) => ['--group', group]),
    ...(lock === undefined ? [] : ['--lock', lock]),
  ];
  return spawn(leashPath, [...leashArgs, '--', program, ...args], options);
}

/** Facts about a program that the leash is told: whose it is, and its control group. */
export const leashArguments = (): string[] => [
  String(process.pid),
  ...(leash.group === undefined ? [] : ['--group', leash.group]),
];

/**
 * Runs a program to its end and returns its output. For short programs (mke2fs, runc delete …):
 * bounded in time and output.
 * @param options.lock a file that the program holds locked while it runs
 * @throws ProgramError when it fails; ProgramTimeoutError when its time is over, though it may hang
 *   on
 */
export async function run(
  program: string,
  args: readonly string[],
  options: { timeoutMs?: number; input?: string; lock?: string; outputBytesMax?: number } = {},
): Promise<string> {
  const { timeoutMs = TIMEOUT_MS, input = '', lock, outputBytesMax = OUTPUT_BYTES_MAX } = options;
  const child = await started(
    spawnLeashed(program, args, { stdio: ['pipe', 'pipe', 'pipe'], lock }),
  );
  let output = '';
  const collect = (chunk: Buffer): void => {
    if (output.length < outputBytesMax) output += chunk.toString('utf8');
  };
  child.stdout?.on('data', collect);
  child.stderr?.on('data', collect);
  child.stdin?.on('error', () => undefined); // A program may end without reading its input.
  child.stdin?.end(input);
  const closed = once(child, 'close') as Promise<[number | null, string | null]>;
  const ending = await within(closed, timeoutMs);
  if (ending === undefined) throw giveUp(program, timeoutMs, child);
  const [code, signal] = ending;
  if (code !== 0) throw new ProgramError(program, code ?? String(signal), output);
  return output;
}

/** @returns undefined when the promise has not settled in time */
async function within<T>(promise: Promise<T>, ms: number): Promise<T | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = setTimeout(resolve, ms, undefined);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

function giveUp(program: string, timeoutMs: number, child: ChildProcess): ProgramTimeoutError {
  const hasEnded = child.exitCode !== null || child.signalCode !== null;
  const ended = hasEnded ? Promise.resolve() : once(child, 'exit');
  leash.overdue.add(child);
  runInBackground('program.await', async () => {
    await ended.catch(() => undefined);
    leash.overdue.delete(child);
  });
  child.kill('SIGKILL');
  for (const stream of [child.stdin, child.stdout, child.stderr]) stream?.destroy();
  child.unref();
  return new ProgramTimeoutError(program, timeoutMs, ended);
}
