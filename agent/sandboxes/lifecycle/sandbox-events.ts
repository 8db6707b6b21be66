import { SANDBOX_LIMITS } from '../limits.ts';
import { isTransitional, type SandboxState } from '../../../shared/sandbox-lifecycle.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { MachineEvent } from './current-run.ts';
import { BootError, type MachineEnd } from '../../machines/driver.ts';
import type { SandboxContext } from './sandbox-context.ts';
import { handleDrained, handleEnded, handlePauseFailed, handlePaused } from './sandbox-pause.ts';
import { finish } from './sandbox-rest.ts';
import { handleStartFailed, handleStarted } from './sandbox-start.ts';

const START_OVERDUE = 'it did not start in time';
const PAUSE_OVERDUE = 'it was not paused in time, so the host ended it';

/** Handles an event of the sandbox's machine. */
export async function handleMachineEvent(
  context: SandboxContext,
  event: MachineEvent,
): Promise<void> {
  switch (event.kind) {
    case 'started':
      return handleStarted(context, event.machine, event.hook);
    case 'startFailed':
      return handleStartFailed(context, event.error);
    case 'drained':
      return handleDrained(context);
    case 'paused':
      return handlePaused(context);
    case 'pauseFailed':
      return handlePauseFailed(context, event.error);
    case 'ended':
      return handleEnded(context, event.end);
    case 'overdue':
      return handleOverdue(context, event.state);
  }
}

/** Ends a transition that has passed its deadline: aborts a start, and kills a running machine. */
export function endOverdueTransition({ sandbox, current, deps }: SandboxContext): void {
  const { id: sandboxId, state } = sandbox.row;
  const { run } = current;
  if (run === undefined || !isTransitional(state)) return;
  deps.log.error({ sandboxId, state }, 'sandbox:overdue');
  run.abort(new BootError('boot_timeout', START_OVERDUE));
  current.report(run, { kind: 'overdue', state });
}

/** @param overdue the state whose deadline has passed */
async function handleOverdue(context: SandboxContext, overdue: SandboxState): Promise<void> {
  const { state } = context.sandbox.row;
  // Its end was being journalled when the deadline passed: the machine runs, and is to run on.
  if (state !== overdue) return;
  if (state === 'stopping') {
    return finish(context, { reason: 'stop_forced', message: 'it did not stop in time' });
  }
  if (state === 'pausing') return handleEnded(context, await killOverduePause(context));
  await handleStartFailed(context, new BootError('boot_timeout', START_OVERDUE));
}

/** Kills the machine. @returns how it ended: it may have ended by itself just before */
async function killOverduePause({ current, deps, sandbox }: SandboxContext): Promise<MachineEnd> {
  let end: MachineEnd = { reason: 'killed_by_host', message: PAUSE_OVERDUE };
  const killed = current.machine?.kill(PAUSE_OVERDUE).then((observed) => {
    end = observed;
  });
  // A machine whose pause had got as far as ending it never reports its end.
  const isKilled = await settledWithin(Promise.resolve(killed), SANDBOX_LIMITS.sandboxKillMsMax);
  if (!isKilled) deps.log.warn({ sandboxId: sandbox.row.id }, 'sandbox:killTimedOut');
  return end;
}
