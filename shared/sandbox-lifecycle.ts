import type { ErrorCode } from './errors.ts';

/*
 * The life of a sandbox as two tables: what each command comes to in each state, and which states
 * follow which (SPEC "States and transitions", WIRE §2.7). Pure; agent, control, tests and the
 * documents all read it.
 */

/** States as they are kept. Callers see both pending ones as `pending`. */
export const sandboxStates = [
  'pending_start',
  'pending_resume',
  'running',
  'pausing',
  'paused',
  'stopping',
  'stopped',
  'exited',
  'failed',
] as const;
export type SandboxState = (typeof sandboxStates)[number];

/** States as the API shows them. */
export type SandboxStatus = Exclude<SandboxState, `pending_${string}`> | 'pending';

export const statusOfState = (state: SandboxState): SandboxStatus =>
  state === 'pending_start' || state === 'pending_resume' ? 'pending' : state;

export const sandboxCommands = [
  'start',
  'stop',
  'pause',
  'resume',
  'fork',
  'delete',
  'exec',
  'connect',
] as const;
export type SandboxCommand = (typeof sandboxCommands)[number];

/** What a command comes to. */
export type Verdict =
  /** It begins: the sandbox goes into this state, or is deleted. */
  | { readonly kind: 'begin'; readonly to: SandboxState | 'deleted' }
  /** It is done, and the sandbox stays in its state. */
  | { readonly kind: 'allow' }
  /** What it asks for is so already, or on its way: answered without doing anything. */
  | { readonly kind: 'unchanged' }
  /** 409 with this code. */
  | { readonly kind: 'refuse'; readonly code: ErrorCode };

const begin = (to: SandboxState | 'deleted'): Verdict => ({ kind: 'begin', to });
const refuse = (code: ErrorCode): Verdict => ({ kind: 'refuse', code });
const allow: Verdict = { kind: 'allow' };
const unchanged: Verdict = { kind: 'unchanged' };

const starting = refuse('sandbox_start_conflict');
const pausing = refuse('sandbox_pausing');
const stopping = refuse('sandbox_stopping');
const terminated = refuse('sandbox_terminated');
const notRunning = refuse('sandbox_not_running');
const notStopped = refuse('sandbox_not_stopped');

type Row = Readonly<Record<SandboxCommand, Verdict>>;

/** Only a running sandbox runs anything; only one at rest is deleted. */
const busy = { delete: notStopped, exec: notRunning, connect: notRunning };
const atRest = { delete: begin('deleted'), exec: notRunning, connect: notRunning };

/** Starting one at rest; what had memory to resume is gone. */
const ended: Row = {
  ...atRest,
  start: begin('pending_start'),
  stop: unchanged,
  pause: notRunning,
  resume: terminated,
  fork: terminated,
};

const verdicts: Readonly<Record<SandboxState, Row>> = {
  pending_start: {
    ...busy,
    start: unchanged,
    stop: begin('stopping'),
    pause: starting,
    resume: starting,
    fork: starting,
  },
  pending_resume: {
    ...busy,
    start: starting,
    stop: begin('stopping'),
    pause: starting,
    resume: unchanged,
    fork: starting,
  },
  running: {
    start: unchanged,
    stop: begin('stopping'),
    pause: begin('pausing'),
    resume: unchanged,
    fork: allow, // The parent runs on after a moment.
    delete: notStopped,
    exec: allow,
    connect: allow,
  },
  pausing: {
    ...busy,
    start: pausing,
    stop: pausing,
    pause: unchanged,
    resume: pausing,
    fork: pausing,
  },
  paused: {
    ...busy,
    start: begin('pending_start'), // The snapshot is discarded, the disk stays.
    stop: begin('stopped'),
    pause: unchanged,
    resume: begin('pending_resume'),
    fork: allow,
  },
  stopping: {
    ...busy,
    start: stopping,
    stop: unchanged,
    pause: stopping,
    resume: stopping,
    fork: stopping,
  },
  stopped: { ...ended, pause: unchanged, fork: allow },
  exited: ended,
  failed: ended,
};

/** What the command comes to in this state. */
export const verdictOn = (state: SandboxState, command: SandboxCommand): Verdict =>
  verdicts[state][command];

/** The states that may follow each, by a command or by what happens to the machine. */
export const sandboxTransitions: Readonly<Record<SandboxState, readonly SandboxState[]>> = {
  pending_start: ['running', 'stopping', 'failed'],
  // Back to paused when the snapshot was not touched yet.
  pending_resume: ['running', 'paused', 'stopping', 'failed'],
  running: ['pausing', 'stopping', 'exited', 'failed'],
  // Back to running when the checkpoint cannot be written.
  pausing: ['paused', 'running', 'exited', 'failed'],
  paused: ['pending_start', 'pending_resume', 'stopped'],
  stopping: ['stopped'],
  stopped: ['pending_start'],
  exited: ['pending_start'],
  failed: ['pending_start'],
};

/** States that end by themselves: each needs a deadline and somebody who watches it. */
export const isTransitional = (state: SandboxState): boolean =>
  state.startsWith('pending_') || state === 'pausing' || state === 'stopping';

/** @throws Error for a transition that the table has not: that is a fault of ours */
export function assertTransition(from: SandboxState, to: SandboxState): void {
  if (sandboxTransitions[from].includes(to)) return;
  throw new Error(`a sandbox cannot go from ${from} to ${to}`);
}
