import { LIMITS } from '../../shared/limits.ts';
import { isTransitional } from '../../shared/sandbox-lifecycle.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import type { MachineEvent } from './current-session.ts';
import { BootError, type MachineEnd } from './machine-driver.ts';
import type { SandboxContext } from './sandbox-context.ts';
import { handleEnded, handleNotPaused, handlePaused } from './sandbox-pause.ts';
import { finish } from './sandbox-rest.ts';
import { handleNotUp, handleUp } from './sandbox-start.ts';

const NOT_UP = 'it did not come up in time';
const NOT_PAUSED = 'it was not paused in time, so the host ended it';

/** What follows from each thing that happens to the machine of a sandbox. */
export async function handleMachineEvent(
  context: SandboxContext,
  event: MachineEvent,
): Promise<void> {
  switch (event.kind) {
    case 'up':
      return handleUp(context, event.machine);
    case 'notUp':
      return handleNotUp(context, event.error);
    case 'paused':
      return handlePaused(context);
    case 'notPaused':
      return handleNotPaused(context, event.error);
    case 'ended':
      return handleEnded(context, event.end);
    case 'overdue':
      return handleOverdue(context);
  }
}

/** A transition has passed its deadline: what still comes up is given up, what runs is killed. */
export function endOverdueTransition({ sandbox, current, deps }: SandboxContext): void {
  const { id: sandboxId, state } = sandbox.row;
  const { session } = current;
  if (session === undefined || !isTransitional(state)) return;
  deps.log.error({ sandboxId, state }, 'sandbox:overdue');
  session.abort(new BootError('boot_timeout', NOT_UP));
  current.report(session, { kind: 'overdue' });
}

async function handleOverdue(context: SandboxContext): Promise<void> {
  const { state } = context.sandbox.row;
  if (state === 'stopping') {
    return finish(context, { reason: 'stop_forced', message: 'it did not stop in time' });
  }
  if (state === 'pausing') return handleEnded(context, await killOverduePause(context));
  await handleNotUp(context, new BootError('boot_timeout', NOT_UP));
}

/** How the machine ended; it may have done so by itself just before. */
async function killOverduePause({ current, deps, sandbox }: SandboxContext): Promise<MachineEnd> {
  let end: MachineEnd = { reason: 'killed_by_host', message: NOT_PAUSED };
  const killed = current.machine?.kill(NOT_PAUSED).then((observed) => {
    end = observed;
  });
  // Its end is not told any more when the pause was done but for ending it.
  const isKilled = await settledWithin(Promise.resolve(killed), LIMITS.sandboxKillMsMax);
  if (!isKilled) deps.log.warn({ sandboxId: sandbox.row.id }, 'sandbox:killTimedOut');
  return end;
}
