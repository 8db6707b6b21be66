import type { ErrorCode } from './errors.ts';

/*
 * The lifecycle of a sandbox in two tables: the verdict on each action in each state, and the
 * states that may follow each. Pure. Agent, control and tests read these tables, and a test
 * compares docs/sandboxes.md with them.
 */

/**
 * States as the journal keeps them. Callers see all pending ones as `pending`, and `draining` as
 * `pausing`.
 */
export const sandboxStates = [
  'pending_image',
  'pending_start',
  'pending_resume',
  'running',
  'draining',
  'pausing',
  'paused',
  'stopping',
  'stopped',
  'exited',
  'failed',
] as const;
export type SandboxState = (typeof sandboxStates)[number];

/** States as callers see them. */
export type SandboxStatus = Exclude<SandboxState, `pending_${string}` | 'draining'> | 'pending';

export function statusOfState(state: SandboxState): SandboxStatus {
  if (state === 'draining') return 'pausing';
  return isPending(state) ? 'pending' : state;
}

const isPending = (state: SandboxState): state is Extract<SandboxState, `pending_${string}`> =>
  state.startsWith('pending_');

export const sandboxActions = [
  'start',
  'stop',
  'pause',
  'resume',
  'fork',
  'snapshot',
  'delete',
  'exec',
  'connect',
  'network',
] as const;
export type SandboxAction = (typeof sandboxActions)[number];

/** The fate of an action. */
export type Verdict =
  /** The action begins: the sandbox enters this state, or is deleted. */
  | { readonly kind: 'begin'; readonly to: SandboxState | 'deleted' }
  /** The action is carried out, and the sandbox stays in its state. */
  | { readonly kind: 'allow' }
  /** The state is already the wanted one, or about to be: answered without doing anything. */
  | { readonly kind: 'unchanged' }
  /** Refused: 409 with this code. */
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

type Row = Readonly<Record<SandboxAction, Verdict>>;

/** The verdicts common to all states with a machine, and to those without one. */
const unused = { exec: notRunning, connect: notRunning, network: notRunning };
const busy = { ...unused, delete: notStopped };
const atRest = { ...unused, delete: begin('deleted') };

/** The states without a machine and without memory: the sandbox can only be started or deleted. */
const ended: Row = {
  ...atRest,
  start: begin('pending_start'),
  stop: unchanged,
  pause: notRunning,
  resume: terminated,
  fork: terminated,
  snapshot: terminated,
};

const verdicts: Readonly<Record<SandboxState, Row>> = {
  // Its image is being brought to its host; it holds nothing there meanwhile.
  pending_image: {
    ...busy,
    start: unchanged,
    stop: begin('stopped'),
    pause: starting,
    resume: starting,
    fork: starting,
    snapshot: starting,
  },
  pending_start: {
    ...busy,
    start: unchanged,
    stop: begin('stopping'),
    pause: starting,
    resume: starting,
    fork: starting,
    snapshot: starting,
  },
  pending_resume: {
    ...busy,
    start: starting,
    stop: begin('stopping'),
    pause: starting,
    resume: unchanged,
    fork: starting,
    snapshot: starting,
  },
  running: {
    start: unchanged,
    stop: begin('stopping'),
    pause: begin('pausing'),
    resume: unchanged,
    fork: allow, // The source stands still for a moment and runs on.
    snapshot: allow,
    delete: notStopped,
    exec: allow,
    connect: allow,
    network: allow,
  },
  // Its pause waits for requests. The machine runs and serves what is open; nothing new begins.
  draining: {
    ...busy,
    start: begin('running'),
    stop: begin('stopping'),
    pause: unchanged,
    resume: begin('running'),
    fork: pausing,
    snapshot: pausing,
  },
  pausing: {
    ...busy,
    start: pausing,
    stop: pausing,
    pause: unchanged,
    resume: pausing,
    fork: pausing,
    snapshot: pausing,
  },
  paused: {
    ...busy,
    start: begin('pending_start'), // Boots from the disk; the checkpoint is discarded.
    stop: begin('stopped'),
    pause: unchanged,
    resume: begin('pending_resume'),
    fork: allow,
    snapshot: allow,
  },
  stopping: {
    ...busy,
    start: stopping,
    stop: unchanged,
    pause: stopping,
    resume: stopping,
    fork: stopping,
    snapshot: stopping,
  },
  stopped: { ...ended, pause: unchanged, fork: allow, snapshot: allow },
  exited: ended,
  failed: ended,
};

/** The verdict on an action in a state. */
export const verdictOn = (state: SandboxState, action: SandboxAction): Verdict =>
  verdicts[state][action];

/** A refusal in words: the state, and what makes the action possible. */
export function explainRefusal(state: SandboxState, action: SandboxAction): string {
  const shown = state === 'draining' ? statusOfState(state) : state.replace('_', ' ');
  return `the sandbox is ${shown}: ${remedyFor(state, action)}`;
}

function remedyFor(state: SandboxState, action: SandboxAction): string {
  if (action === 'delete' && state !== 'stopping') return 'stop it first';
  if (state === 'draining') return 'resume it to cancel the pause, which waits for requests';
  if (isTransitional(state)) return `${action} is possible once that is over`;
  if (state === 'paused') return 'resume it first';
  return action === 'resume' ? 'its memory is gone, so start it instead' : 'start it first';
}

/** The codes with which an action is refused in one state or another. */
export function refusalsOf(action: SandboxAction): ErrorCode[] {
  const all = sandboxStates.map((state) => verdictOn(state, action));
  return [...new Set(all.flatMap((verdict) => (verdict.kind === 'refuse' ? [verdict.code] : [])))];
}

/** The states that may follow each, by an action or by what happens to the machine. */
export const sandboxTransitions: Readonly<Record<SandboxState, readonly SandboxState[]>> = {
  pending_image: ['pending_start', 'stopped', 'failed'],
  pending_start: ['running', 'stopping', 'failed'],
  // Back to paused when the resume failed before the checkpoint was used up.
  pending_resume: ['running', 'paused', 'stopping', 'failed'],
  running: ['draining', 'pausing', 'stopping', 'exited', 'failed'],
  // Back to running when a resume or start cancels it, or its time limit no longer asks for it.
  draining: ['pausing', 'running', 'stopping', 'exited', 'failed'],
  // Back to running when the checkpoint cannot be written.
  pausing: ['paused', 'running', 'exited', 'failed'],
  paused: ['pending_start', 'pending_resume', 'stopped'],
  stopping: ['stopped'],
  // The host may lack the image of one that has never run.
  stopped: ['pending_start', 'pending_image'],
  exited: ['pending_start', 'pending_image'],
  failed: ['pending_start', 'pending_image'],
};

/** Whether a state ends by itself. Each such state needs a deadline: the watchdog's or its own. */
export const isTransitional = (state: SandboxState): boolean =>
  isPending(state) || state === 'draining' || state === 'pausing' || state === 'stopping';

/** Whether the guest runs and serves its clients. */
export const isServing = (state: SandboxState): boolean =>
  state === 'running' || state === 'draining';

/** Whether the sandbox has no machine, and gets none unless it is asked to start. */
export const isAtRest = (state: SandboxState): boolean =>
  !isTransitional(state) && !isServing(state);

/** @throws Error for a transition that is not in the table, which is a defect of the agent */
export function assertTransition(from: SandboxState, to: SandboxState): void {
  if (sandboxTransitions[from].includes(to)) return;
  throw new Error(`a sandbox cannot go from ${from} to ${to}`);
}
