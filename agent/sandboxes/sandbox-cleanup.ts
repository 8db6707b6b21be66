import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { repeatUntilDone } from '../queues/until-done.ts';
import type { SandboxContext } from './sandbox-context.ts';

/**
 * Cleans up after a session: removes the remains of the machine, and a checkpoint that will not be
 * resumed, then releases the network slot, which must not be reused before. Resolves after the
 * first attempt; this agent retries a failed one in the background, and the next agent does after
 * it.
 */
export async function cleanUp(context: SandboxContext, slot: number | undefined): Promise<void> {
  if (await attempt(context, slot)) return;
  const retry = async (): Promise<boolean> => {
    try {
      return await context.send(() => attempt(context, slot));
    } catch {
      return false; // The mailbox is full.
    }
  };
  const { detached } = context.sandbox;
  runInBackground('sandbox.cleanUp', () => repeatUntilDone(retry, detached));
}

/** @returns whether everything is removed */
async function attempt(context: SandboxContext, slot: number | undefined): Promise<boolean> {
  const { sandbox, current, deps } = context;
  const { id: sandboxId, vmId, state } = sandbox.row;
  // The sandbox is starting again, and the driver's start removes such remains by itself.
  if (current.session !== undefined && current.machine === undefined) return false;
  try {
    if (current.session === undefined) {
      await deps.driver.reclaim(vmId);
      if (state !== 'paused') await deps.driver.discardCheckpoint(vmId);
      // A paused machine that stays in memory has its disks mounted all the while.
      const isInMemory = state === 'paused' && deps.driver.traits.pausedStaysInMemory;
      if (!isInMemory) await deps.mounts.keepOnly(sandboxId, []);
    }
  } catch (error) {
    deps.log.error({ sandboxId, err: toError(error) }, 'sandbox:cleanUpFailed');
    return false;
  }
  if (slot !== undefined) runInBackground('slot.release', () => deps.slots.release(slot));
  return true;
}
