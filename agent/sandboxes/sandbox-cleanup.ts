import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { repeatUntilDone } from '../queues/until-done.ts';
import type { SandboxContext } from './sandbox-context.ts';

/* What a session leaves on its host. */

/**
 * Removes what is left of the machine of a sandbox at rest, and of a checkpoint that nothing resumes,
 * then gives its network slot back. Resolves after the first attempt; what fails is tried again, by
 * this agent as long as it lives and by the next one, for nobody else may have the slot until then.
 */
export async function cleanUp(context: SandboxContext, slot: number | undefined): Promise<void> {
  if (await attempt(context, slot)) return;
  const again = async (): Promise<boolean> => {
    try {
      return await context.send(() => attempt(context, slot));
    } catch {
      return false; // Too many messages wait.
    }
  };
  const { detached } = context.sandbox;
  runInBackground('sandbox.cleanUp', () => repeatUntilDone(again, detached));
}

/** @returns whether it is done */
async function attempt(context: SandboxContext, slot: number | undefined): Promise<boolean> {
  const { sandbox, current, deps } = context;
  const { id: sandboxId, vmId, state } = sandbox.row;
  // It has begun to come up again: what its driver launches first removes what is left, too.
  if (current.session !== undefined && current.machine === undefined) return false;
  try {
    if (current.session === undefined) {
      await deps.driver.reclaim(vmId);
      if (state !== 'paused') await deps.driver.discardCheckpoint(vmId);
    }
  } catch (error) {
    deps.log.error({ sandboxId, err: toError(error) }, 'sandbox:cleanUpFailed');
    return false;
  }
  if (slot !== undefined) runInBackground('slot.release', () => deps.slots.release(slot));
  return true;
}
