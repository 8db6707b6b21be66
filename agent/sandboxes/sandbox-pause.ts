import { randomUUID } from 'node:crypto';
import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import type { MachineEnd } from './machine-driver.ts';
import type { SandboxContext } from './sandbox-context.ts';
import { finish, rest, toExitMessage } from './sandbox-rest.ts';

/* Pausing a running sandbox; when that fails, the sandbox continues to run. */

/** Why the commands of a paused sandbox ended. */
export const PAUSED = 'the sandbox was paused';

export async function beginPause(context: SandboxContext, cause: string): Promise<void> {
  const { sandbox, current, execs, processes, deps } = context;
  const { session } = current;
  if (session?.machine === undefined)
    throw new Error('a sandbox without a machine cannot be paused');
  await sandbox.enter('pausing', { checkpoint: randomUUID() }, cause);
  const { vmId } = sandbox.row;
  processes.releaseClients();
  const pausing = execs.cancelAll(PAUSED).then(() => deps.driver.pause(vmId));
  current.pausing = pausing.catch(toError);
  runInBackground('sandbox.pause', async () => {
    try {
      await pausing;
      current.report(session, { kind: 'paused' });
    } catch (error) {
      current.report(session, { kind: 'pauseFailed', error: toError(error) });
    }
  });
}

/** @param exitMessage says why, when nobody had asked for the pause */
export async function handlePaused(context: SandboxContext, exitMessage?: string): Promise<void> {
  context.current.machine?.detach();
  await context.execs.loseAll('cancelled', PAUSED);
  context.processes.disconnect();
  const change = exitMessage === undefined ? {} : { exitMessage };
  await rest(context, 'paused', change, exitMessage ?? 'the checkpoint is durable');
}

/** The sandbox continues to run; its record says why, and a time limit pauses it again later. */
export async function handlePauseFailed(context: SandboxContext, error: Error): Promise<void> {
  const { sandbox, deps } = context;
  // The failure may have come after the checkpoint was durable, and then the pause has succeeded.
  if (await deps.driver.hasCheckpoint(sandbox.row.vmId)) return handlePaused(context);
  deps.log.warn({ sandboxId: sandbox.row.id, err: error }, 'sandbox:pauseFailed');
  await continueRunning(context, `it could not be paused: ${error.message}`);
}

async function continueRunning(
  { sandbox, execs, processes }: SandboxContext,
  message: string,
): Promise<void> {
  const exitMessage = toExitMessage(message);
  await sandbox.enter('running', { checkpoint: undefined, exitMessage }, exitMessage);
  execs.acceptAgain();
  processes.acceptAgain();
  sandbox.postponeLimits();
}

/** The machine has ended. If its checkpoint was durable by then, the sandbox counts as paused. */
export async function handleEnded(context: SandboxContext, end: MachineEnd): Promise<void> {
  const { sandbox, current, deps } = context;
  if (sandbox.row.state === 'pausing') {
    await pauseIsOver(current);
    if (await deps.driver.hasCheckpoint(sandbox.row.vmId)) return handlePaused(context);
  }
  await finish(context, end);
}

/**
 * Waits until a pause whose machine is gone has returned, so that it cannot touch a later machine.
 */
export async function pauseIsOver({ pausing }: SandboxContext['current']): Promise<void> {
  await settledWithin(pausing, LIMITS.sandboxKillMsMax);
}
