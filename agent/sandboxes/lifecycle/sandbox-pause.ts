import { randomUUID } from 'node:crypto';
import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import { monotonicNow } from '../../system/monotonic-clock.ts';
import type { MachineEnd } from '../../machines/driver.ts';
import type { SandboxContext } from './sandbox-context.ts';
import { nameAddresses } from './sandbox-network.ts';
import { finish, rest, toExitMessage } from './sandbox-rest.ts';

/* Pausing a running sandbox; when that fails or is cancelled, the sandbox continues to run. */

/** Why the commands of a paused sandbox ended. */
export const PAUSED = 'the sandbox was paused';

/**
 * Pauses a sandbox that runs, once the requests are over that its network policy names.
 * @param isAsked whether a caller asked for it: a time limit may no longer ask for it then
 */
export async function beginDrainOrPause(
  context: SandboxContext,
  cause: string,
  isAsked: boolean,
): Promise<void> {
  const { sandbox } = context;
  if ((sandbox.row.network.egress?.drain_on_pause ?? []).length === 0)
    return beginPause(context, cause);
  await sandbox.enter('draining', { checkpoint: randomUUID() }, cause);
  awaitRequests(context, isAsked);
}

/** Reports when a pause need not wait any longer. */
export function awaitRequests(context: SandboxContext, isAsked: boolean): void {
  const { current, drain, sandbox, copies } = context;
  const { run } = current;
  if (run === undefined) throw new Error('a sandbox without a machine cannot be paused');
  drain.begin(sandbox.row, isAsked, async (cancelled) => {
    await copies.copying; // The next agent has the machine continue first.
    if (!cancelled.aborted) current.report(run, { kind: 'drained' });
  });
}

export async function handleDrained(context: SandboxContext): Promise<void> {
  const { sandbox, drain } = context;
  if (sandbox.row.state !== 'draining') return; // The pause was cancelled.
  if (drain.isAsked || sandbox.isLimitReached) return beginPause(context, 'its requests are over');
  await sandbox.enter('running', { checkpoint: undefined }, 'it was used meanwhile');
}

/** A sandbox whose pause is cancelled has the time limits of one that is resumed. */
export async function cancelPause({ sandbox }: SandboxContext, cause: string): Promise<void> {
  const now = monotonicNow();
  const limits = {
    runningSince: now,
    expiresAt: now + sandbox.row.config.maxTtlSeconds * 1000,
    idleSince: now,
  };
  const exitMessage = toExitMessage(`its pause was cancelled: ${cause}`);
  await sandbox.enter('running', { checkpoint: undefined, exitMessage, ...limits }, cause);
}

export async function beginPause(context: SandboxContext, cause: string): Promise<void> {
  const { sandbox, current, execs, processes, deps } = context;
  const { run } = current;
  if (run?.machine === undefined) throw new Error('a sandbox without a machine cannot be paused');
  const { checkpoint = randomUUID() } = sandbox.row; // Callers know it since a drain began.
  await sandbox.enter('pausing', { checkpoint }, cause);
  const { vmId } = sandbox.row;
  processes.releaseClients();
  const pausing = execs.cancelAll(PAUSED).then(() => deps.driver.pause(vmId));
  current.pausing = pausing.catch(toError);
  runInBackground('sandbox.pause', async () => {
    try {
      await pausing;
      current.report(run, { kind: 'paused' });
    } catch (error) {
      current.report(run, { kind: 'pauseFailed', error: toError(error) });
    }
  });
}

/** @param exitMessage says why, when nobody had asked for the pause */
export async function handlePaused(context: SandboxContext, exitMessage?: string): Promise<void> {
  context.current.machine?.detach();
  await context.execs.loseAll('cancelled', PAUSED);
  context.processes.disconnect();
  const learnt = { nameAddresses: await nameAddresses(context) };
  const change = exitMessage === undefined ? learnt : { ...learnt, exitMessage };
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
  await settledWithin(pausing, SANDBOX_LIMITS.sandboxKillMsMax);
}
