import { type ChildProcess, spawn, type SpawnOptions } from 'node:child_process';
import { once } from 'node:events';
import { closeSync } from 'node:fs';
import { Socket } from 'node:net';
import { runInBackground } from '../../shared/background.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import { native } from '../native/native.ts';
import { programEnvironment } from './environment.ts';
import { leashed, type LeashOptions } from './leash.ts';
import { type StartedProgram, startLeashed, type StartOptions } from './start-program.ts';

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

/** Killed programs that have not ended yet: each hangs in the kernel. */
const overdue = new Set<StartedProgram>();

/** How many programs were killed but have not ended, because they hang in the kernel. */
export const overduePrograms = (): number => overdue.size;

/** No program gets the agent's environment (environment.ts). */
type ProgramOptions = Omit<SpawnOptions, 'env'>;

/**
 * Starts a program that ends when this agent ends (leash.c), for one that needs pipes or a
 * directory of its own; others are started by {@link run}. Every program is leashed, except those
 * meant to outlive the agent.
 */
export function spawnLeashed(
  program: string,
  args: readonly string[],
  { lock, sharedLock, groups, ...options }: ProgramOptions & LeashOptions = {},
): ChildProcess {
  const [path, ...rest] = leashed(program, args, {
    ...{ lock, sharedLock },
    ...(groups === undefined ? {} : { groups }),
  });
  return spawn(path, rest, { ...options, env: programEnvironment() });
}

/** Starts a program that is meant to outlive the agent, in a session of its own and at `/`. */
export const spawnDetached = (
  program: string,
  args: readonly string[],
  options: Pick<SpawnOptions, 'stdio'>,
): ChildProcess =>
  spawn(program, args, { ...options, detached: true, cwd: '/', env: programEnvironment() });

interface RunOptions extends Pick<StartOptions, 'lock' | 'sharedLock' | 'environment'> {
  readonly timeoutMs?: number;
  readonly input?: string;
  readonly outputBytesMax?: number;
}

/**
 * Runs a program to its end and returns its output. For short programs (mke2fs, runc delete …):
 * bounded in time and output.
 * @param options.lock a file that the program holds locked while it runs; `sharedLock`: one that it
 *   only reads
 * @throws ProgramError when it fails; ProgramTimeoutError when its time is over, though it may hang
 *   on
 */
export async function run(
  program: string,
  args: readonly string[],
  options: RunOptions = {},
): Promise<string> {
  const { timeoutMs = TIMEOUT_MS, input = '', outputBytesMax = OUTPUT_BYTES_MAX } = options;
  const { started, stdin, stdout } = await startWithPipes(program, args, options);
  let output = '';
  stdout.on('data', (chunk: Buffer) => {
    if (output.length < outputBytesMax) output += chunk.toString('utf8');
  });
  const closed = once(stdout, 'close');
  stdin.end(input);
  const ended = closed.then(() => started.ended);
  const isOver = await settledWithin(ended, timeoutMs);
  stdin.destroy();
  stdout.destroy();
  if (!isOver) throw giveUp(program, timeoutMs, started);
  const ending = await ended;
  if (ending !== 0) throw new ProgramError(program, ending, output);
  return output;
}

interface Piped {
  readonly started: StartedProgram;
  readonly stdin: Socket;
  /** Also what it writes to stderr. */
  readonly stdout: Socket;
}

async function startWithPipes(
  program: string,
  args: readonly string[],
  { lock, sharedLock, environment }: RunOptions,
): Promise<Piped> {
  const [inputEnd, inputFd] = native.pipe();
  const stdin = new Socket({ fd: inputFd, readable: false, writable: true });
  let stdout: Socket | undefined;
  let outputEnd: number | undefined;
  try {
    const output = native.pipe();
    outputEnd = output[1];
    stdout = new Socket({ fd: output[0], readable: true, writable: false });
    // A program may end without reading its input.
    for (const socket of [stdin, stdout]) socket.on('error', () => undefined);
    const options = { lock, sharedLock, environment };
    const ends = [inputEnd, outputEnd, outputEnd];
    const started = await startLeashed(program, args, ends, options);
    return { started, stdin, stdout };
  } catch (error) {
    stdin.destroy();
    stdout?.destroy();
    throw error;
  } finally {
    closeSync(inputEnd);
    if (outputEnd !== undefined) closeSync(outputEnd);
  }
}

function giveUp(program: string, timeoutMs: number, started: StartedProgram): ProgramTimeoutError {
  const { ended } = started;
  overdue.add(started);
  runInBackground('program.await', async () => {
    await ended;
    overdue.delete(started);
  });
  started.kill();
  started.leave();
  return new ProgramTimeoutError(program, timeoutMs, ended);
}
