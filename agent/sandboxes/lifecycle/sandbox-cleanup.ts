import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import { repeatUntilDone } from '../../system/queues/until-done.ts';
import type { SandboxContext } from './sandbox-context.ts';

/**
 * Cleans up after a run: removes the remains of the machine, and a checkpoint that will not be
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

/** Releases the disks, also those that a paused machine keeps though it can do without. */
export async function releaseDisks({ sandbox, deps }: SandboxContext): Promise<void> {
  const { id, vmId, config } = sandbox.row;
  deps.driver.releaseDisks(vmId);
  const mounts = deps.mounts.locate(config.mounts ?? []);
  await deps.mounts.retain(id, await deps.driver.mountsInUse(vmId, mounts));
}

/** @returns whether everything is removed */
async function attempt(context: SandboxContext, slot: number | undefined): Promise<boolean> {
  const { sandbox, current, deps } = context;
  const { id: sandboxId, vmId, state, config } = sandbox.row;
  // The sandbox is starting again, and the driver's start removes such remains by itself.
  if (current.run !== undefined && current.machine === undefined) return false;
  try {
    if (current.run === undefined) {
      await deps.driver.reclaim(vmId);
      if (state !== 'paused') await deps.driver.discardCheckpoint(vmId);
      const mounts = state === 'paused' ? deps.mounts.locate(config.mounts ?? []) : [];
      await deps.mounts.retain(sandboxId, await deps.driver.mountsInUse(vmId, mounts));
    }
  } catch (error) {
    deps.log.error({ sandboxId, err: toError(error) }, 'sandbox:cleanUpFailed');
    return false;
  }
  if (slot !== undefined) runInBackground('slot.release', () => deps.slots.release(slot));
  return true;
}
