import { randomUUID } from 'node:crypto';
import { runInBackground } from '../../../shared/background.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import type { SandboxState } from '../../../shared/sandbox-lifecycle.ts';
import { withoutHook } from '../../system/journal/unfinished-hook.ts';
import type { SandboxChange } from './journalled-sandbox.ts';
import type { MachineEnd } from '../../machines/driver.ts';
import { cleanUp } from './sandbox-cleanup.ts';
import type { SandboxContext } from './sandbox-context.ts';

/* How a sandbox comes to rest: stopping it, and handling the end of its machine. */

/** Why processes end, in the words that attached clients know. */
const STOPPED = 'sandbox stopped';

const STOPPED_WHILE_PAUSED: MachineEnd = {
  reason: 'stopped',
  message: 'stopped while it was paused',
};

/** Cuts a message to the length that a sandbox's record allows. */
export const toExitMessage = (text: string): string =>
  text.slice(0, SCHEMA_LIMITS.sandboxExitMessageLengthMax);

/**
 * A stopped sandbox continues from its disk alone; without a disk it has nothing to continue from.
 */
export async function newDiskCheckpoint({
  sandbox,
  deps,
}: SandboxContext): Promise<Pick<SandboxChange, 'checkpoint'>> {
  const hasDisk = await deps.driver.hasDisk(sandbox.row.vmId);
  return { checkpoint: hasDisk ? randomUUID() : undefined };
}

/** Shuts the machine down, or aborts its start; the end of either leads to {@link finish}. */
export function beginStop({ current, execs, processes }: SandboxContext): void {
  const { run } = current;
  if (run === undefined) return;
  execs.expectStop();
  processes.expectStop(STOPPED);
  run.abort(new Error('the sandbox is being stopped'));
  runInBackground('sandbox.stop', () => run.machine?.stop(SANDBOX_LIMITS.sandboxStopGraceMs));
}

/** Stops a paused sandbox, which has no machine: discards its checkpoint. */
export async function stopPaused(
  context: SandboxContext,
  { reason, message }: MachineEnd = STOPPED_WHILE_PAUSED,
): Promise<void> {
  const change = {
    checkpoint: randomUUID(), // A new id, because the memory of the former one is gone.
    finishedAt: new Date().toISOString(),
    exitReason: reason,
    exitMessage: toExitMessage(message),
  };
  // The sandbox may hold its memory; see `rest`.
  context.deps.capacity.release(context.sandbox.row.id);
  await context.sandbox.enter('stopped', change, message);
  await cleanUp(context, undefined);
}

/** Records the end of a machine whose memory is lost. */
export async function finish(context: SandboxContext, end: MachineEnd): Promise<void> {
  const { sandbox, execs, processes } = context;
  const { state, checkpoint, createdAt, runningAt } = sandbox.row;
  const wasStopping = state === 'stopping';
  const isShutdown = end.reason === 'guest_shutdown';
  const to = wasStopping ? 'stopped' : isShutdown ? 'exited' : 'failed';
  const status = to === 'stopped' ? 'cancelled' : 'failed';
  const beganAt = Date.parse(runningAt ?? createdAt);
  const endedAt = Math.max(beganAt, Math.min(end.endedAt ?? Infinity, Date.now()));
  const why = `the sandbox ${to === 'stopped' ? 'was stopped' : 'ended'}`;
  await execs.loseAll(status, why, endedAt);
  processes.loseAll('cancelled', to === 'stopped' ? STOPPED : 'sandbox ended');
  const change = {
    checkpoint: to === 'stopped' ? checkpoint : undefined,
    finishedAt: new Date(endedAt).toISOString(),
    // The guest may have shut down on a former agent's request before this agent came.
    exitReason: wasStopping && isShutdown ? 'stopped' : end.reason,
    exitMessage: toExitMessage(end.message),
    ...withoutHook(sandbox.row),
  };
  await rest(context, to, change, end.message);
}

/**
 * Journals that the sandbox is at rest, then releases everything that its machine held on the host.
 */
export async function rest(
  context: SandboxContext,
  to: SandboxState,
  change: SandboxChange,
  cause: string,
): Promise<void> {
  const { sandbox, current, deps } = context;
  const { id, slot } = sandbox.row;
  // Before its record shows the rest, so that a caller can rely on the capacity.
  if (to === 'paused' && deps.driver.traits.pausedStaysInMemory)
    deps.capacity.holdMemory(sandbox.row);
  else deps.capacity.release(id);
  await sandbox.enter(to, { ...change, slot: undefined, expiresAt: undefined }, cause);
  current.end(); // Only after the journal: a failed write leaves the event to be reported again.
  // The record of how the machine ended must stay until that is journalled.
  await cleanUp(context, slot);
}
