import { randomUUID } from 'node:crypto';
import { runInBackground } from '../../shared/background.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { SandboxState } from '../../shared/sandbox-lifecycle.ts';
import type { SandboxChange } from './journalled-sandbox.ts';
import type { MachineEnd } from './machine-driver.ts';
import type { SandboxContext } from './sandbox-context.ts';

/* How a sandbox comes to rest: stopping, and what follows the end of a machine. */

/** Why processes end, in the words that clients of sessions know. */
const STOPPED = 'sandbox stopped';

/** Fits a message into the sandbox's record. */
export const toExitMessage = (text: string): string =>
  text.slice(0, LIMITS.sandboxExitMessageLengthMax);

/** The checkpoint of a sandbox that stops is its disk; one that never came up has none. */
export async function newDiskCheckpoint({
  sandbox,
  deps,
}: SandboxContext): Promise<Pick<SandboxChange, 'checkpoint'>> {
  const hasDisk = await deps.driver.hasDisk(sandbox.row.vmId);
  return { checkpoint: hasDisk ? randomUUID() : undefined };
}

/** Shuts the machine down, or keeps it from coming up; `finish` follows. */
export function beginStop({ current, execs, processes }: SandboxContext): void {
  const { session } = current;
  if (session === undefined) return;
  execs.expectStop();
  processes.expectStop(STOPPED);
  session.abort(new Error('the sandbox is to stop'));
  runInBackground('sandbox.stop', () => session.machine?.stop(LIMITS.sandboxStopGraceMs));
}

/** A paused sandbox has no machine to stop: only its checkpoint is given up. */
export async function stopPaused({ sandbox, deps }: SandboxContext): Promise<void> {
  const change = {
    checkpoint: randomUUID(), // The memory of the former one cannot be had any more.
    finishedAt: new Date().toISOString(),
    exitReason: 'stopped',
    exitMessage: 'stopped while it was paused',
  } as const;
  await sandbox.enter('stopped', change, 'stop was asked for');
  await deps.driver.discardCheckpoint(sandbox.row.vmId);
}

/** Nothing of the machine runs any more, and its memory is lost. */
export async function finish(context: SandboxContext, end: MachineEnd): Promise<void> {
  const { sandbox, execs, processes, deps } = context;
  const { state, checkpoint, vmId, createdAt, runningAt } = sandbox.row;
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
    // A former agent may have asked for it, and the guest have ended before this one came.
    exitReason: wasStopping && isShutdown ? 'stopped' : end.reason,
    exitMessage: toExitMessage(end.message),
  };
  await rest(context, to, change, end.message);
  await deps.driver.discardCheckpoint(vmId);
}

/** Journals that the sandbox rests, then gives back everything that its machine had of the host. */
export async function rest(
  { sandbox, current, deps }: SandboxContext,
  to: SandboxState,
  change: SandboxChange,
  cause: string,
): Promise<void> {
  const { driver, slots, capacity } = deps;
  const { id, vmId, slot } = sandbox.row;
  capacity.release(id); // Whoever sees that it rests may count on its capacity.
  await sandbox.enter(to, { ...change, slot: undefined, expiresAt: undefined }, cause);
  current.end(); // Not before: what cannot be journalled now is reported again.
  // Only now, and only here: what tells how the machine ended had to stay until it was journalled.
  await driver.reclaim(vmId);
  // The next session has another one.
  if (slot !== undefined) runInBackground('slot.release', () => slots.release(slot));
}
