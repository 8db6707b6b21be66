import { randomUUID } from 'node:crypto';
import { toError } from '../../shared/errors.ts';
import { repeatUntilDone } from '../queues/until-done.ts';
import type { SandboxContext } from './sandbox-context.ts';
import { type StartState, withResources } from './sandbox-start.ts';

/**
 * Optional inputs: a prewarmed VM's slot, or a callback that copies the parent's disk and memory.
 */
export interface Creation {
  /** The network slot of the prewarmed VM that the sandbox takes. */
  readonly slot?: number | undefined;
  /** Copies another sandbox's disk and memory. @returns the state in which the new one starts */
  readonly copy?: () => Promise<StartState>;
  /** The host does not have the image yet: the sandbox holds nothing until it does. */
  readonly awaitsImage?: boolean;
}

/**
 * Reserves capacity and a slot for a new sandbox, copies its disk if it is a fork, and journals it.
 * @throws AppError `no_capacity`, `host_full`; what `copy` throws. Call {@link removeUncreated}
 *   then
 */
export async function createSandbox(
  context: SandboxContext,
  { slot: given, copy, awaitsImage = false }: Creation,
): Promise<void> {
  if (awaitsImage) {
    await copy?.(); // The source has no disk either; it refuses what the state forbids.
    await context.sandbox.insert('pending_image', {});
    context.deps.capacity.release(context.sandbox.row.id); // Releases control's reservation.
    return;
  }
  const make = async (slot: number): Promise<void> => {
    const state = (await copy?.()) ?? 'pending_start';
    const checkpoint = state === 'pending_resume' ? randomUUID() : undefined;
    await context.deps.carrier?.storage.claim(context.sandbox.row.vmId);
    await context.sandbox.insert(state, { slot, checkpoint });
  };
  await withResources(context, make, { given });
}

/**
 * Removes the remains of a sandbox whose creation failed. If that fails, retries in the background.
 * @returns `removed` resolves when nothing is left, or the agent ends; the uid must not be reused
 *   before
 */
export async function removeUncreated(
  context: SandboxContext,
  creation: Creation,
): Promise<{ readonly removed: Promise<void> }> {
  const attempt = (): Promise<boolean> => attemptRemoval(context, creation);
  if (await attempt()) return { removed: Promise.resolve() };
  return { removed: repeatUntilDone(attempt, context.sandbox.detached) };
}

/** @returns whether everything is removed */
async function attemptRemoval(
  { sandbox, deps }: SandboxContext,
  { slot }: Creation,
): Promise<boolean> {
  const { driver, slots, mounts, log } = deps;
  const { id: sandboxId, vmId } = sandbox.row;
  try {
    await driver.reclaim(vmId);
    await driver.remove(vmId);
    await mounts.keepOnly(sandboxId, []);
    if (slot !== undefined) await slots.release(slot);
    return true;
  } catch (error) {
    log.error({ sandboxId, err: toError(error) }, 'sandbox:removeFailed');
    return false;
  }
}
