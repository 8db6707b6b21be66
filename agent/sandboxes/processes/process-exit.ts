import { constants } from 'node:os';
import type { ProcessEnd } from '../../machines/guest-link/process-end.ts';

/**
 * How a process ended, as its clients are told. These are not the words of exec records:
 * there a command that was killed from inside is `completed`, here it is `failed`.
 */
export interface ProcessExit {
  readonly status: 'completed' | 'failed' | 'cancelled' | 'timed_out';
  /** Absent when nobody saw one: after a kill, a time-out, or the end of the sandbox. */
  readonly exitCode?: number;
  readonly reason?: string;
  /** How many bytes the process put out. */
  readonly cursor: number;
}

// Shells add the signal's number to this for the exit code of a process that a signal ended.
const SIGNAL_EXIT_CODE = 128;

const nameOfSignal = (number: number): string =>
  Object.entries(constants.signals).find(([, value]) => value === number)?.[0] ?? String(number);

/** @param expected why the sandbox is about to end the process, if it is */
export function processExit(end: ProcessEnd, expected?: string): ProcessExit {
  const cursor = end.end;
  if (end.cause === 'timed_out') return { status: 'timed_out', reason: 'timed out', cursor };
  if (end.cause === 'killed') return { status: 'cancelled', reason: 'process killed', cursor };
  if (expected !== undefined) return { status: 'cancelled', reason: expected, cursor };
  if (end.signal !== undefined) {
    const reason = `ended by ${nameOfSignal(end.signal)}`;
    return { status: 'failed', exitCode: SIGNAL_EXIT_CODE + end.signal, reason, cursor };
  }
  const exitCode = end.exitCode ?? 0;
  if (exitCode === 0) return { status: 'completed', exitCode, cursor };
  return { status: 'failed', exitCode, reason: `exit code ${exitCode}`, cursor };
}
