import type { Writable } from 'node:stream';
import type { OutputChunk, Process, ProcessExit } from '@berth/sdk';
import { EndingSignals, SIGNALLED } from './ending-signals.ts';
import { Failure } from './failure.ts';
import { visible } from './text.ts';

const KILLED = SIGNALLED + 9;
/** The exit code of timeout(1). */
const TIMED_OUT = 124;

/** Waits while whoever reads our output does not. */
export async function writeTo(stream: Writable, bytes: Uint8Array): Promise<void> {
  if (stream.write(bytes)) return;
  await new Promise<void>((resolve) => {
    const go = (): void => {
      stream.off('drain', go).off('close', go);
      resolve();
    };
    stream.on('drain', go).on('close', go);
  });
}

const writeChunk = ({ stream, bytes }: OutputChunk): Promise<void> =>
  writeTo(stream === 'stdout' ? process.stdout : process.stderr, bytes);

/** The exit code that says what became of a process. @throws Failure when nobody knows */
export function exitCodeOf({ status, exitCode, reason }: ProcessExit): number {
  if (status === 'timed_out') return TIMED_OUT; // Its record may have the code of the kill.
  if (exitCode !== undefined) return exitCode;
  if (status === 'cancelled') return KILLED;
  const next = 'look whether it was done before you repeat it';
  throw new Failure(reason ?? 'the sandbox lost the command', next);
}

/** Says why a process ended that did not end by itself: its exit code alone would not. */
function noteCutShort({ status, reason }: ProcessExit): void {
  if (status !== 'cancelled' && status !== 'timed_out') return;
  const behind = process.stdout.isTTY ? '\n' : ''; // A prompt may stand in the line.
  const why = visible(reason ?? status);
  process.stderr.write(`${behind}berth: the command did not end by itself: ${why}.\n`);
}

/** Kills the process when this program is to end, as a terminal does whose window is closed. */
export function killAtSignal(remote: Process): EndingSignals {
  const signals = new EndingSignals(() => {
    remote.kill().catch(() => process.exit(signals.exitCode));
  });
  return signals;
}

/** The exit code with which we end, and why, unless we have killed the process ourselves. */
export function codeAtEnd(exit: ProcessExit, { exitCode }: EndingSignals): number {
  if (exitCode !== undefined) return exitCode;
  noteCutShort(exit);
  return exitCodeOf(exit);
}

/** Sends our input to the process, and its end. */
async function forwardInput(remote: Process): Promise<void> {
  for await (const bytes of process.stdin) await remote.write(bytes as Uint8Array);
  remote.closeInput();
}

/**
 * Passes output, and input if it is wanted, through pipes until the process has ended.
 * @returns its exit code
 */
export async function pipeProcess(remote: Process, hasInput: boolean): Promise<number> {
  using signals = killAtSignal(remote);
  if (hasInput) forwardInput(remote).catch(() => undefined); // Its end says what happened.
  else remote.closeInput();
  try {
    for await (const chunk of remote) await writeChunk(chunk);
    return codeAtEnd(await remote.exit, signals);
  } finally {
    // Nobody reads it any more; we need not wait for its end.
    if (hasInput) process.stdin.destroy();
  }
}
